/* Makes CPU tensors say that they lie on CUDA device 0, in what the library reads: torch's exchange table and
   the native function behind it. With fake_cuda.c a call then goes the whole way without a GPU. */
#include <Python.h>
#include <stdint.h>

#ifdef COUNT_INSTRUCTIONS
#include <valgrind/callgrind.h>
#endif

typedef struct { /* DLTensor; dtype and the rest are left alone */
    void* data;
    int32_t device_type, device_id, ndim, dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;

typedef struct { /* DLPackExchangeAPI of major version 1 */
    uint32_t major, minor;
    void *older, *allocator, *from_object, *to_object;
    int (*tensor_from_object)(void* object, Tensor* out);
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
} Table;

static Table table;
static int (*real_table_function)(void*, Tensor*);
static void (*real_function)(const void*, Tensor*, int);

static void claim(Tensor* t) {
    t->device_type = 2;
    t->device_id = 0;
}

static int claiming_table_function(void* object, Tensor* out) {
    const int failed = real_table_function(object, out);
    if (!failed) claim(out);
    return failed;
}

/* Stands for the functions of two arguments and of three: the last one is passed on. */
static void claiming_function(const void* tensor, Tensor* out, int read_only) {
    real_function(tensor, out, read_only);
    claim(out);
}

static int some_stream(int32_t device_type, int32_t device_id, void** stream) {
    (void)device_type, (void)device_id;
    *stream = (void*)0x5000;
    return 0;
}

PyObject* claim_table(PyObject* capsule) {
    const Table* real = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (real == NULL) return NULL;
    table = *real;
    table.older = NULL;
    real_table_function = real->tensor_from_object;
    table.tensor_from_object = claiming_table_function;
    table.current_work_stream = some_stream;
    return PyCapsule_New(&table, "dlpack_exchange_api", NULL);
}

void* claim_function(void* real) {
    *(void**)&real_function = real;
    return (void*)claiming_function;
}

#ifdef COUNT_INSTRUCTIONS
int under_callgrind(void) { return RUNNING_ON_VALGRIND != 0; }

/* Calls `call` `times` times and lets callgrind write down what that took. */
PyObject* count(PyObject* call, int times, const char* name) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
    for (int i = 0; i < times; i++) {
        PyObject* result = PyObject_CallNoArgs(call);
        if (result == NULL) return NULL;
        Py_DECREF(result);
    }
    CALLGRIND_DUMP_STATS_AT(name);
    CALLGRIND_STOP_INSTRUMENTATION;
    Py_RETURN_NONE;
}
#endif
