// Arguments of a METH_FASTCALL | METH_KEYWORDS function, put into one slot for each parameter, with Python's
// own errors.
#pragma once

#include <Python.h>

#include <array>
#include <cstddef>

namespace dgj::bindings {

template <std::size_t kCount>
class Signature {
public:
    // The first `positional` parameters may be given by position, the first `required` must be given.
    Signature(const char* function, std::array<const char*, kCount> names, std::size_t positional,
              std::size_t required)
        : function_(function), names_(names), positional_(positional), required_(required) {}

    // Slots hold borrowed references, nullptr where nothing was given. False with a TypeError set.
    bool parse(PyObject* const* args, Py_ssize_t positional_count, PyObject* keywords,
               std::array<PyObject*, kCount>& slots) {
        slots.fill(nullptr);
        const auto given = static_cast<std::size_t>(positional_count);
        if (given > positional_) [[unlikely]] {
            PyErr_Format(PyExc_TypeError, "%s() takes at most %zu positional arguments, %zu were given",
                         function_, positional_, given);
            return false;
        }
        for (std::size_t i = 0; i < given; ++i) slots[i] = args[i];
        const Py_ssize_t keyword_count = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
        for (Py_ssize_t i = 0; i < keyword_count; ++i)
            if (!place(PyTuple_GET_ITEM(keywords, i), args[positional_count + i], slots)) return false;
        for (std::size_t i = 0; i < required_; ++i)
            if (slots[i] == nullptr) [[unlikely]] {
                PyErr_Format(PyExc_TypeError, "%s() is missing the required argument '%s'", function_,
                             names_[i]);
                return false;
            }
        return true;
    }

private:
    bool place(PyObject* keyword, PyObject* value, std::array<PyObject*, kCount>& slots) {
        if (interned_[0] == nullptr && !intern()) return false;
        std::size_t at = 0;
        while (at < kCount && interned_[at] != keyword) ++at;  // keywords of a call site are interned
        if (at == kCount) [[unlikely]] {
            for (at = 0; at < kCount; ++at)
                if (PyUnicode_Compare(interned_[at], keyword) == 0) break;
        }
        if (at == kCount) [[unlikely]] {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function_, keyword);
            return false;
        }
        if (slots[at] != nullptr) [[unlikely]] {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", function_,
                         names_[at]);
            return false;
        }
        slots[at] = value;
        return true;
    }

    bool intern() {
        for (std::size_t i = kCount; i-- > 0;)  // [0] last: it says that all are there
            if ((interned_[i] = PyUnicode_InternFromString(names_[i])) == nullptr) return false;
        return true;
    }

    const char* function_;
    std::array<const char*, kCount> names_;
    std::array<PyObject*, kCount> interned_{};
    std::size_t positional_, required_;
};

}  // namespace dgj::bindings
