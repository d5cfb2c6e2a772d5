// The one place where {fmt}'s functions are compiled. With FMT_HEADER_ONLY every file of the core would compile
// them again: measured, 8.6 s instead of 2.0 s a file. Still no {fmt} library is linked; only its headers are used.
#include <fmt/format-inl.h>

// Templates that fmt/format.h declares as defined elsewhere.
template char fmt::detail::decimal_point_impl<char>(locale_ref);
template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl<char>(locale_ref);
