"""Plans for tests: by fields from the planner's candidates, and with clusters, which it does not choose."""

from dataclasses import dataclass

from deep_gemm_jit import _core


@dataclass(frozen=True)
class Clustered:
    """A gemm plan whose blocks share operands by multicast: the kernel can, the planner finds it slower."""

    plan: object
    rows: int
    cols: int

    def emit(self):
        source = _core.emit(self.plan)
        text = source.text
        for name, value in (("kClusterRows", self.rows), ("kClusterCols", self.cols)):
            assert text.count(f"constexpr unsigned {name} = 1;") == 1
            text = text.replace(f"constexpr unsigned {name} = 1;", f"constexpr unsigned {name} = {value};")
        return _core.make_source(text, source.headers, source.entry, source.arch)

    @property
    def shape(self) -> dict:
        shape = self.plan.shape
        return {
            **shape,
            "cluster": self.rows * self.cols,
            "a_box_rows": shape["a_box_rows"] // self.cols,
            "b_box_rows": shape["b_box_rows"] // self.rows,
        }

    def grid_blocks(self, m: int, sms: int) -> int:
        units = -(-m // (self.plan.tile_rows * self.rows))
        units *= -(-self.plan.problem.n // (self.plan.tile_cols * self.cols))
        size = self.rows * self.cols
        return max(1, min(units, sms // size)) * size

    def __str__(self) -> str:
        return f"{self.plan} cluster {self.rows}x{self.cols}"


def for_call(plan, extras: bool):
    """The plan that a call with alpha, bias or c takes in its place, as the launch does."""
    if isinstance(plan, Clustered):
        return Clustered(for_call(plan.plan, extras), plan.rows, plan.cols)
    if not extras or plan.family != "gemm" or plan.problem.d_dtype == "float32":
        return plan
    fields = plan.to_dict()
    fields["problem"]["extras"] = True
    return _core.KernelPlan.from_dict(fields)


def emit(plan):
    return plan.emit() if isinstance(plan, Clustered) else _core.emit(plan)


def find(problem, m: int, cluster_rows: int = 1, cluster_cols: int = 1, **fields):
    """The best candidate with these fields."""
    for candidate in _core.candidates(problem, m, "h200"):
        plan = candidate["plan"]
        if plan.cluster_rows * plan.cluster_cols > 1:
            continue
        if all(getattr(plan, name) == value for name, value in fields.items()):
            clustered = cluster_rows * cluster_cols > 1
            return Clustered(plan, cluster_rows, cluster_cols) if clustered else plan
    raise AssertionError(f"no plan of {problem} for m = {m} has {fields}")
