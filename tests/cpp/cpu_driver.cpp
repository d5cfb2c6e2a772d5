// Runs csrc/cpu without Python. `digest`: a hash of every output of a fixed set of problems, to compare
// builds for different instruction sets. `speed`: GFLOP per second of CPU time. `fork`: children compute
// while the parent does.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "cpu/convert.hpp"
#include "cpu/cpu_ops.hpp"

namespace {
using namespace dgj;

struct Random {  // a 64-bit linear congruential generator: the same numbers everywhere
    std::uint64_t state = 1;
    std::uint32_t bits() {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<std::uint32_t>(state >> 33);
    }
    float uniform() { return static_cast<float>(bits() >> 7) * 0x1p-24f; }  // [0, 1)
};

struct Tensor {
    std::vector<std::uint8_t> storage;
    TensorView view;
    Tensor(DType dtype, std::vector<std::int64_t> shape) {
        std::int64_t count = 1;
        for (const std::int64_t extent : shape) count *= extent;
        storage.resize(static_cast<std::size_t>(count * size_of(dtype)) + 16);
        const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
        view.data = storage.data() + (16 - address % 16) % 16;
        view.dtype = dtype;
        view.ndim = static_cast<int>(shape.size());
        std::int64_t stride = 1;
        for (int i = view.ndim - 1; i >= 0; --i) {
            view.shape[i] = shape[i];
            view.stride[i] = stride;
            stride *= shape[i];
        }
    }
    std::int64_t count() const { return view.shape[0] * (view.ndim == 2 ? view.shape[1] : 1); }
    template <class T>
    T* as() {
        return static_cast<T*>(view.data);
    }
    // A factor times a difference: no compiler can fuse it, so all builds get the same inputs.
    void fill(Random& random, float zero, float factor) {
        for (std::int64_t i = 0; i < count(); ++i) {
            const float x = factor * (random.uniform() - zero);
            if (view.dtype == DType::kE4M3) {
                as<std::uint8_t>()[i] = cpu::f32_to_e4m3(x);
            } else {
                cpu::with_float_type(view.dtype, [&](auto* type) {
                    cpu::from_f32(x, as<std::decay_t<decltype(*type)>>()[i]);
                });
            }
        }
    }
};

struct Problem {
    Tensor a, sfa, b, sfb, d, c, bias;
    Problem(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, Random& random)
        : a(DType::kE4M3, {m, k}), sfa(DType::kF32, {m, (k + 127) / 128}), b(DType::kE4M3, {n, k}),
          sfb(DType::kF32, {(n + 127) / 128, (k + 127) / 128}), d(dtype, {m, n}), c(dtype, {m, n}),
          bias(DType::kF32, {n}) {
        for (Tensor* t : {&a, &b}) t->fill(random, 0.5f, 400);
        for (Tensor* t : {&sfa, &sfb, &c, &bias}) t->fill(random, -0.125f, 1e-2f);
    }
    void run() {
        const Fp8GemmArgs args{a.view, sfa.view, b.view, sfb.view, d.view, c.view, bias.view, 0.37f};
        cpu::fp8_gemm_nt(validate_fp8_gemm(args));
    }
};

struct Digest {  // FNV-1a
    std::uint64_t value = 14695981039346656037ull;
    void add(const Tensor& t) {
        const auto* bytes = static_cast<const std::uint8_t*>(t.view.data);
        for (std::int64_t i = 0; i < t.count() * size_of(t.view.dtype); ++i)
            value = (value ^ bytes[i]) * 1099511628211ull;
    }
};

void digest() {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr std::int64_t kShapes[][3] = {{1, 520, 1040}, {37, 264, 400}, {197, 136, 1024}, {5, 8, 16}};
    Random random;
    for (const auto& [m, n, k] : kShapes) {
        for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
            Digest result;
            Problem problem(m, n, k, dtype, random);
            problem.a.as<std::uint8_t>()[3] = 0xff;  // NaN with its sign
            problem.bias.as<float>()[1] = kInfinity;
            problem.bias.as<float>()[2] = -kInfinity;
            problem.run();
            result.add(problem.d);
            Tensor x(dtype, {m, k}), q(DType::kE4M3, {m, k}), sf(DType::kF32, {m, (k + 127) / 128});
            x.fill(random, 0.5f, 6);
            cpu::with_float_type(dtype, [&](auto* type) {
                using T = std::decay_t<decltype(*type)>;
                cpu::from_f32(std::nanf(""), x.as<T>()[0]);
                cpu::from_f32(-kInfinity, x.as<T>()[m * k - 1]);
            });
            for (const std::int64_t rows : {1, 128}) {
                cpu::cast_to_fp8({.x = x.view.data,
                                  .x_dtype = dtype,
                                  .rows = m,
                                  .cols = k,
                                  .ldx = k,
                                  .ldq = k,
                                  .q = q.view.data,
                                  .sf = sf.as<float>(),
                                  .sf_stride_row = sf.view.stride[0],
                                  .sf_stride_block = 1,
                                  .gran_rows = rows,
                                  .use_ue8m0 = rows == 1});
                result.add(q);
                result.add(sf);
            }
            std::printf("m=%ld n=%ld k=%ld %s %016lx\n", m, n, k, name_of(dtype), result.value);
        }
    }
}

void speed() {
    Random random;
    Problem problem(512, 1024, 2048, DType::kBF16, random);
    problem.run();
    double best = 0;
    for (int i = 0; i < 5; ++i) {
        const std::clock_t start = std::clock();  // of all threads, so that a busy machine does not count
        problem.run();
        const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
        best = std::max(best, 2e-9 * 512 * 1024 * 2048 / seconds);
    }
    std::printf("%.1f\n", best);
}

int forked() {
    Random random;
    Problem problem(200, 512, 512, DType::kBF16, random);
    problem.run();
    Digest want;
    want.add(problem.d);
    std::atomic<bool> stop{false};
    Problem other(200, 512, 512, DType::kBF16, random);
    std::thread busy([&] {
        while (!stop) other.run();
    });
    int failures = 0;
    for (int i = 0; i < 20; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            std::memset(problem.d.view.data, 0, 200 * 512 * 2);
            problem.run();
            Digest got;
            got.add(problem.d);
            _exit(got.value == want.value ? 0 : 1);
        }
        int status = 1;
        waitpid(child, &status, 0);
        failures += status != 0;
    }
    stop = true;
    busy.join();
    std::printf("%d failures\n", failures);
    return failures;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (what == "digest") return digest(), 0;
    if (what == "speed") return speed(), 0;
    if (what == "fork") return forked();
    return 2;
}
