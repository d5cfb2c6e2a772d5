// Runs csrc/cpu without Python. `digest`: a hash of every output of a fixed set of problems, to compare
// builds for different instruction sets. `speed`: GFLOP per second of CPU time. `fork`: children compute
// while the parent does. `clamps`: groups whose values are out of range.
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

// Values of `groups` that validation would refuse, as another thread may write them after it: they count as
// the tame ones beside them.
int clamps() {
    constexpr std::int64_t kGroups = 3, kRows = 20, kN = 24, kK = 144;
    constexpr std::int32_t kLow = std::numeric_limits<std::int32_t>::min(),
                           kHigh = std::numeric_limits<std::int32_t>::max();
    struct Case {
        GroupForm form;
        std::vector<std::int32_t> wild, tame;
    };
    std::vector<std::int32_t> wild_ids(kRows), tame_ids(kRows);
    for (std::size_t row = 0; row < kRows; ++row) {  // units of 8: of nobody, of 2 with a hole, of nobody
        wild_ids[row] = row < 8 ? kHigh : row < 16 ? (row == 10 ? 3 : row == 13 ? 1 : 2) : -2;
        tame_ids[row] = row < 8 || row >= 16 || row == 10 || row == 13 ? -1 : 2;
    }
    const Case cases[] = {
        {GroupForm::kIds, wild_ids, tame_ids},
        {GroupForm::kEnds, {-5, 3, kHigh}, {0, 3, 20}},
        {GroupForm::kEnds, {13, 2, kLow}, {13, 16, 16}},
        {GroupForm::kOffsets, {kLow, 7, 5, kHigh}, {0, 7, 7, 20}},
        {GroupForm::kOffsets, {25, 3, 1, -1}, {20, 20, 20, 20}},
        {GroupForm::kCounts, {kLow, 4, kHigh}, {0, 4, 20}},
    };
    Random random;
    int failures = 0;
    for (const Case& c : cases) {
        const std::int64_t planes = c.form == GroupForm::kCounts ? kGroups : 1;
        Tensor a(DType::kE4M3, {planes * kRows, kK}), sfa(DType::kF32, {planes * kRows, 2});
        Tensor b(DType::kE4M3, {kGroups * kN, kK}), sfb(DType::kF32, {kGroups, 2});
        for (Tensor* t : {&a, &b}) t->fill(random, 0.5f, 400);
        for (Tensor* t : {&sfa, &sfb}) t->fill(random, -0.125f, 1e-2f);
        Digest results[2];
        for (const bool wild : {false, true}) {
            Tensor d(DType::kBF16, {planes * kRows, kN});
            d.fill(random, 0, 0);
            cpu::m_grouped_gemm({.rows = kRows,
                                 .n = kN,
                                 .k = kK,
                                 .groups = kGroups,
                                 .form = c.form,
                                 .alignment = 8,
                                 .a = a.view.data,
                                 .b = b.view.data,
                                 .sfa = sfa.as<float>(),
                                 .sfb = sfb.as<float>(),
                                 .d = d.view.data,
                                 .index = (wild ? c.wild : c.tame).data(),
                                 .lda = kK,
                                 .ldb = kK,
                                 .ldd = kN,
                                 .a_group = planes == 1 ? 0 : kRows * kK,
                                 .b_group = kN * kK,
                                 .d_group = planes == 1 ? 0 : kRows * kN,
                                 .sfa_stride_m = 2,
                                 .sfa_stride_k = 1,
                                 .sfa_group = planes == 1 ? 0 : kRows * 2,
                                 .sfb_stride_n = 2,
                                 .sfb_stride_k = 1,
                                 .sfb_group = 2});
            results[wild].add(d);
        }
        failures += results[0].value != results[1].value;
    }
    std::printf("%d failures\n", failures);
    return failures;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (what == "digest") return digest(), 0;
    if (what == "speed") return speed(), 0;
    if (what == "fork") return forked();
    if (what == "clamps") return clamps();
    return 2;
}
