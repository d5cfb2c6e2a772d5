// Calls a kernel with its parameters given as pointers, as cuLaunchKernel does.
#pragma once

namespace dgj::emu {

template <unsigned... kIndex>
struct Indices {};
template <unsigned kCount, unsigned... kIndex>
struct MakeIndices : MakeIndices<kCount - 1, kCount - 1, kIndex...> {};
template <unsigned... kIndex>
struct MakeIndices<0, kIndex...> {
    using type = Indices<kIndex...>;
};

template <class... Args, unsigned... kIndex>
void call(void (*kernel)(Args...), void** parameters, Indices<kIndex...>) {
    kernel(*static_cast<const Args*>(parameters[kIndex])...);
}
template <class... Args>
void call(void (*kernel)(Args...), void** parameters) {
    call(kernel, parameters, typename MakeIndices<sizeof...(Args)>::type{});
}

}  // namespace dgj::emu

#define DGJ_EMULATED_ENTRY(kernel)                                                                 \
    extern "C" __attribute__((visibility("default"))) void dgj_emulated_entry(void** parameters) { \
        dgj::emu::call(&kernel, parameters);                                                       \
    }
