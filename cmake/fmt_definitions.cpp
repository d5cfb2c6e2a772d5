// The one place where {fmt}'s functions are compiled. With FMT_HEADER_ONLY every file of the core would compile
// them again: measured, 8.6 s instead of 2.0 s a file. Still no {fmt} library is linked; only its headers are used.
#include <fmt/format-inl.h>

// Templates that headers only declare and that a {fmt} library would hold for char.
FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
