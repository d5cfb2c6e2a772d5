// What KernelPlan.__new__(KernelPlan) returns has the type of a plan and memory that nobody wrote. pybind11
// would hand it on. Every file that takes one of these types from Python has to see this.
#pragma once

#include <pybind11/pybind11.h>

#include "base/error.hpp"
#include "base/kernel_source.hpp"
#include "emit/emit_cast.hpp"
#include "plan/plan.hpp"

namespace dgj::bindings {

template <class T>
class [[gnu::visibility("hidden")]] MadeObjectCaster : public pybind11::detail::type_caster_base<T> {
public:
    bool load(pybind11::handle object, bool convert) {
        if (object && pybind11::isinstance<T>(object)) {
            auto* instance = reinterpret_cast<pybind11::detail::instance*>(object.ptr());
            const auto* type = pybind11::detail::get_type_info(typeid(T));
            if (!instance->get_value_and_holder(type).holder_constructed())
                fail(ErrorKind::kType,
                     "{0}: the object was never made, only its __new__ was called; call "
                     "what returns a {0}",
                     std::string(pybind11::str(pybind11::type::of<T>().attr("__name__"))));
        }
        return pybind11::detail::type_caster_base<T>::load(object, convert);
    }
};

}  // namespace dgj::bindings

namespace pybind11::detail {
template <>
class type_caster<dgj::GemmProblem> : public dgj::bindings::MadeObjectCaster<dgj::GemmProblem> {};
template <>
class type_caster<dgj::KernelPlan> : public dgj::bindings::MadeObjectCaster<dgj::KernelPlan> {};
template <>
class type_caster<dgj::CastPlan> : public dgj::bindings::MadeObjectCaster<dgj::CastPlan> {};
template <>
class type_caster<dgj::KernelSource> : public dgj::bindings::MadeObjectCaster<dgj::KernelSource> {};
}  // namespace pybind11::detail
