"""Mechanical checks of the source tree: sizes, layering, forbidden constructs, what the README must list."""

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_COLUMNS = 110
MAX_LINES = 500
MAX_LINES_OF_A_TEST = 700
CXX_SUFFIXES = {".cpp", ".hpp", ".cuh", ".cu", ".h"}
PYTHON_SUFFIXES = {".py", ".pyi"}

# folder of csrc -> the folders whose headers it may include, beside its own
ARROWS = {
    "base": set(),
    "problem": {"base"},
    "plan": {"base", "problem"},
    "emit": {"base", "problem", "plan"},
    "cpu": {"base", "problem"},
    "compile": {"base"},
    "cache": {"base", "compile"},  # a miss compiles
    "runtime": {"base", "problem", "plan", "emit", "cpu", "compile", "cache"},
    "bindings": {"base", "problem", "plan", "emit", "cpu", "compile", "cache", "runtime"},
}

FORBIDDEN_IN_HOST_CODE = {
    "output on the terminal": r"\b(printf|fprintf|vprintf|puts|putchar|perror)\s*\(|\bstd::(cout|cerr|clog)\b"
    r"|<iostream>",
    "std::regex": r"<regex>|\bstd::w?regex\b",
    "a shell": r"\b(system|popen)\s*\(",
    "raw new": r"(?<!operator )(?<!<)\bnew\b",
    "ending the process": r"\b(abort|exit|_exit|quick_exit|terminate)\s*\(|\bassert\s*\(",
    "inline assembly": r"\b(asm|__asm__|__asm)\b",
}
TORCH_HEADER = r'#\s*include\s*[<"](torch|ATen|c10|caffe2)/'
PYTHON_HEADER = r'#\s*include\s*[<"](pybind11/|Python\.h)'

# What device code reaches only through functions of kernels_src/ptx, so that the emulator can replace it.
FORBIDDEN_OUTSIDE_PTX = {
    "inline assembly": r"\b(asm|__asm__)\b",
    "a built-in variable": r"\b(threadIdx|blockIdx|blockDim|gridDim|clusterIdx|warpSize)\b",
    "an intrinsic": r"\b(__syncthreads|__syncwarp|__shfl\w*|__ballot\w*|__ldg|__nanosleep|__trap|__cvta\w*"
    r"|__nv_\w+|atomic[A-Z]\w*|__float2\w+|__\w+2float\w*)\s*\(",
    "a vendor type": r"\b(__half2?|__nv_bfloat16\w*|__nv_fp8\w*)\b",
    "terminal output or a trap": r"\b(printf|assert)\s*\(",
}


def files_under(*folders: str, suffixes: set[str]) -> list[Path]:
    found = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes and "build" not in path.relative_to(ROOT).parts
    ]
    assert found, f"no source in {folders}: the check would check nothing"
    return found


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_of(text: str, keep_strings: bool = False) -> str:
    """C++ text without comments, and without the contents of strings; line breaks stay."""
    token = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"'
        r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'',
        re.S,
    )

    def replace(match: re.Match) -> str:
        found = match.group()
        if found.startswith("/"):
            return "\n" * found.count("\n")
        return found if keep_strings else '""' + "\n" * found.count("\n")

    return token.sub(replace, text)


def matches(path: Path, code: str, patterns: dict[str, str]) -> list[str]:
    found = []
    for number, line in enumerate(code.splitlines(), 1):
        for meaning, pattern in patterns.items():
            if re.search(pattern, line):
                found.append(f"{name_of(path)}:{number}: {meaning}: {line.strip()}")
    return found


HOST_FILES = files_under("csrc", suffixes=CXX_SUFFIXES)
DEVICE_FILES = files_under("kernels_src", suffixes=CXX_SUFFIXES)
HEADERS = [path for path in HOST_FILES if path.suffix == ".hpp"]


def test_files_are_short_and_lines_narrow():
    folders = ("csrc", "kernels_src", "deep_gemm_jit", "python", "tests", "benchmarks", "examples", "tools")
    wrong = []
    for path in files_under(*folders, suffixes=CXX_SUFFIXES | PYTHON_SUFFIXES):
        lines = path.read_text().splitlines()
        limit = MAX_LINES_OF_A_TEST if path.relative_to(ROOT).parts[0] == "tests" else MAX_LINES
        if len(lines) > limit:
            wrong.append(f"{name_of(path)}: {len(lines)} lines, at most {limit}")
        wrong += [
            f"{name_of(path)}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"
            for number, line in enumerate(lines, 1)
            if len(line) > MAX_COLUMNS
        ]
    assert not wrong, "\n".join(wrong)


def test_host_code_has_no_forbidden_construct():
    wrong = []
    for path in HOST_FILES:
        wrong += matches(path, code_of(path.read_text()), FORBIDDEN_IN_HOST_CODE)
    assert not wrong, "\n".join(wrong)


def test_device_code_reaches_the_machine_through_ptx_only():
    wrong = []
    for path in DEVICE_FILES:
        if path.relative_to(ROOT).parts[1] != "ptx":
            wrong += matches(path, code_of(path.read_text()), FORBIDDEN_OUTSIDE_PTX)
    assert not wrong, "\n".join(wrong)


def test_the_core_sees_neither_torch_nor_python():
    wrong = []
    for path in HOST_FILES + DEVICE_FILES:
        code = code_of(path.read_text(), keep_strings=True)
        wrong += matches(path, code, {"a torch header": TORCH_HEADER})
        if "bindings" not in path.relative_to(ROOT).parts:
            wrong += matches(path, code, {"a Python header outside bindings/": PYTHON_HEADER})
    assert not wrong, "\n".join(wrong)


def included_folders(path: Path) -> list[str]:
    code = code_of(path.read_text(), keep_strings=True)
    names = re.findall(r'#\s*include\s*"([^"]+)"', code)
    if path.relative_to(ROOT / "csrc").parts[0] == "runtime":
        # Kernels' argument structs are shared: runtime fills what device code reads.
        kernels = ROOT / "kernels_src"
        names = [name for name in names if not (name.endswith("_args.cuh") and (kernels / name).is_file())]
    return [name.split("/")[0] if "/" in name else "" for name in names]


def test_includes_follow_the_arrows():
    assert {path.relative_to(ROOT).parts[1] for path in HOST_FILES} <= set(ARROWS), "a folder without a rule"
    wrong = []
    for path in HOST_FILES:
        folder = path.relative_to(ROOT).parts[1]
        for target in included_folders(path):
            if target not in ARROWS[folder] | {folder}:
                wrong.append(f"{name_of(path)} includes {target or 'a header without its folder'}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ('int f() { std::printf("x"); }', "output on the terminal"),
        ("auto* p = new int(3);", "raw new"),
        ('std::system("ls");', "a shell"),
        ('asm volatile("nop");', "inline assembly"),
        ("std::abort();", "ending the process"),
        ('std::string s = R"(a "quoted" text)"; int* q = new int;', "raw new"),
    ],
)
def test_the_checks_find_what_they_look_for(text, meaning):
    found = matches(ROOT / "csrc/x.cpp", code_of(text), FORBIDDEN_IN_HOST_CODE)
    assert len(found) == 1 and meaning in found[0]


@pytest.mark.parametrize(
    "text",
    [
        "// a new idea",
        '"printf(new asm)"',
        "/* system(\n) */",
        "int renew = 0;",
        'R"(asm ( new )"',
        "snprintf(b, 2, s)",
        "void* p = ::operator new(8);",
        "#include <new>",
    ],
)
def test_the_checks_leave_comments_and_strings_alone(text):
    assert matches(ROOT / "csrc/x.cpp", code_of(text), FORBIDDEN_IN_HOST_CODE) == []


def environment_variables() -> dict[str, str]:
    text = (ROOT / "csrc/base/env.hpp").read_text()
    found = dict(re.findall(r'EnvVar\s+(k\w+)\s*\{\s*"(\w+)"', text))
    assert len(found) > 5
    return found


def test_every_environment_variable_stands_in_the_table_of_the_readme():
    rows = re.findall(r"^\|\s*`(\w+)`\s*\|", (ROOT / "README.md").read_text(), re.M)
    assert sorted(rows) == sorted(environment_variables().values())


def test_the_table_of_variables_is_complete():
    listed = re.findall(r"&(k\w+)", code_of((ROOT / "csrc/base/env.cpp").read_text()))
    assert sorted(listed) == sorted(environment_variables())


def test_variables_are_read_through_the_table_only():
    wrong, known = [], set(environment_variables().values())
    for path in HOST_FILES:
        if name_of(path) == "csrc/base/env.cpp":
            continue
        wrong += matches(path, code_of(path.read_text()), {"getenv": r"\b(secure_)?getenv\s*\("})
    for path in HOST_FILES + files_under("deep_gemm_jit", suffixes={".py"}):
        for name in re.findall(r"""["'](DGJ_[A-Z0-9_]+)["']""", path.read_text()):
            if name not in known:
                wrong.append(f"{name_of(path)}: {name} is not in csrc/base/env.hpp")
    assert not wrong, "\n".join(wrong)


def test_library_python_neither_prints_nor_starts_a_shell():
    wrong = []
    for path in files_under("deep_gemm_jit", suffixes={".py"}):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "os.system", "os.popen"}:
                wrong.append(f"{name_of(path)}:{node.lineno}: {ast.unparse(node.func)}")
    assert not wrong, "\n".join(wrong)


def test_the_version_is_the_same_everywhere():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    header = (ROOT / "csrc/base/version.hpp").read_text()
    assert re.findall(r'kPackageVersion\s*=\s*"([^"]+)"', header) == [wanted]
    assert re.search(rf"^## {re.escape(wanted)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_the_package_ships_its_type_information():
    import deep_gemm_jit

    installed = Path(deep_gemm_jit.__file__).parent
    assert (installed / "py.typed").is_file()
    for stub in (ROOT / "deep_gemm_jit").rglob("*.pyi"):
        assert (installed / stub.relative_to(ROOT / "deep_gemm_jit")).is_file(), name_of(stub)


def include_options(pybind11: Path | None = None) -> list[str]:
    """Where the build finds {fmt}, cuda.h and pybind11: in this environment, or what is given."""
    if pybind11 is None:
        import pybind11 as installed

        pybind11 = Path(installed.get_include())
    site = Path(sysconfig.get_path("purelib"))
    options = ["-I", str(ROOT / "csrc"), "-I", str(ROOT / "kernels_src")]
    for folder in (
        site / "cmeel.prefix/include",
        site / "nvidia/cu13/include",
        pybind11,
        Path(sysconfig.get_path("include")),
    ):
        assert folder.is_dir(), folder
        options += ["-isystem", str(folder)]
    return options


@pytest.mark.parametrize("header", HEADERS, ids=name_of)
def test_header_compiles_alone(header):
    name = header.relative_to(ROOT / "csrc").as_posix()
    # Designated initialisers name only the members that differ from their default: no warning about others.
    warnings = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]
    command = ["g++", "-std=c++20", "-fsyntax-only", *warnings, "-DFMT_HEADER_ONLY", *include_options()]
    done = subprocess.run(
        [*command, "-x", "c++", "-"],
        input=f'#include "{name}"\n',
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_bindings_compile_with_the_oldest_pybind11_that_the_build_asks_for(tmp_path):
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    oldest = next(line for line in required if line.startswith("pybind11>=")).removeprefix("pybind11>=")
    assert f"find_package(pybind11 {oldest} " in (ROOT / "CMakeLists.txt").read_text()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*pip, f"pybind11=={oldest}.*"], check=True)
    folders = include_options(tmp_path / "pybind11/include")
    options = ["-std=c++20", "-fsyntax-only", "-DFMT_HEADER_ONLY", *folders]
    for source in sorted((ROOT / "csrc/bindings").glob("*.cpp")):
        done = subprocess.run(["g++", *options, str(source)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_this_is_the_interpreter_of_the_installed_package():
    import deep_gemm_jit

    assert str(Path(deep_gemm_jit.__file__).resolve()).startswith(str(Path(sys.prefix).resolve()))
