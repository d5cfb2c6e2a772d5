#include "bindings/native_ops.hpp"

#include <exception>
#include <string_view>
#include <vector>

namespace dgj::bindings {
namespace {

struct NativeOperator {
    const char* name;
    torch_abi::Kernel kernel;
};

std::vector<NativeOperator>& operators() {
    static std::vector<NativeOperator> list;
    return list;
}

// Torch's Python bindings know pybind11's builtin_exception by its name, and have it set the Python error;
// the type of any other would be RuntimeError. C++ callers see a std::runtime_error.
class OperatorError final : public py::builtin_exception {
public:
    explicit OperatorError(const Error& error) : builtin_exception(error.what()), kind_(error.kind()) {}
    void set_error() const override { set_python_error(Error(kind_, what())); }

private:
    ErrorKind kind_;
};

torch_abi::Functions g_abi;
std::vector<void*> g_libraries;  // torch's handles, which its operators need for the life of the process

bool read_functions(PyObject* addresses, torch_abi::Functions& found) {
    const auto read = [&](const char* name, auto& function) {
        PyObject* address = PyDict_GetItemString(addresses, name);  // borrowed
        if (address == nullptr || address == Py_None) return false;
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(PyLong_AsVoidPtr(address));
        return function != nullptr;
    };
    return read("abi_version", found.abi_version) && read("init_impl", found.init_impl) &&
           read("implement", found.implement) && read("delete_library", found.delete_library) &&
           read("delete_tensor", found.delete_tensor);
}

bool usable(const torch_abi::Functions& abi) {
    const std::uint64_t version = abi.abi_version();
    return reads_natively() && version >= torch_abi::kVersion &&
           torch_abi::major_of(version) == torch_abi::major_of(torch_abi::kVersion);
}

void withdraw() noexcept {
    for (void* library : g_libraries) g_abi.delete_library(library);
    g_libraries.clear();
}

bool implement(const char* key) {
    void* library = nullptr;
    if (g_abi.init_impl("deep_gemm_jit", key, __FILE__, __LINE__, &library) != 0) return false;
    g_libraries.push_back(library);
    for (const NativeOperator& op : operators())
        if (g_abi.implement(library, op.name, op.kernel, torch_abi::kVersion) != 0) return false;
    return true;
}

PyObject* implement_operators(PyObject* /*module*/, PyObject* addresses) {
    if (PyDict_Check(addresses) == 0)
        return PyErr_Format(PyExc_TypeError, "implement_operators: addresses must be a dict");
    torch_abi::Functions found;
    const bool complete = read_functions(addresses, found);
    if (PyErr_Occurred() != nullptr) return nullptr;
    if (!complete || !g_libraries.empty() || !usable(found)) Py_RETURN_FALSE;
    g_abi = found;
    if (implement("CPU") && implement("CUDA")) Py_RETURN_TRUE;
    withdraw();
    Py_RETURN_FALSE;
}

PyObject* withdraw_operators(PyObject* /*module*/, PyObject* /*unused*/) {
    withdraw();
    Py_RETURN_NONE;
}

PyObject* native_operators(PyObject* /*module*/, PyObject* /*unused*/) {
    return PyBool_FromLong(!g_libraries.empty());
}

PyMethodDef g_methods[] = {
    {"implement_operators", &implement_operators, METH_O,
     "implement_operators(addresses)\n--\n\nCalled once by deep_gemm_jit.ops. True: the GEMMs' operators, "
     "which "
     "it has defined, are implemented without Python. False: this torch lacks the means."},
    {"withdraw_operators", &withdraw_operators, METH_NOARGS,
     "withdraw_operators()\n--\n\nTakes back what implement_operators did."},
    {"native_operators", &native_operators, METH_NOARGS,
     "native_operators()\n--\n\nWhether torch calls the GEMMs' operators without Python."},
};

}  // namespace

void add_native_operator(const char* name, torch_abi::Kernel kernel) {
    operators().push_back({name, kernel});
}

void delete_tensor(void* tensor) noexcept { g_abi.delete_tensor(tensor); }

void throw_to_torch(const Error& error) { throw OperatorError(error); }

void read_native(const char* function, std::span<const Named<NativeTensor>> tensors) {
    for (const Named<NativeTensor>& t : tensors) {
        if (t.object == nullptr) continue;
        ReadResult read = ReadResult::kOk;
        try {
            read = read_tensor(t.object, *t.view);
        } catch (const std::exception& error) {          // None, or a tensor without memory of its own
            const std::string_view what = error.what();  // torch adds a trace of calls
            fail(ErrorKind::kRuntime, "{}: {} cannot be read: {}. Pass a dense tensor", function, t.name,
                 what.substr(0, what.find('\n')));
        }
        if (read == ReadResult::kTooMany) throw too_many_dims(function, t.name, *t.view);
    }
}

void bind_native_ops(py::module_& m) {
    for (PyMethodDef& method : g_methods) add_internal(m, method);
}

}  // namespace dgj::bindings
