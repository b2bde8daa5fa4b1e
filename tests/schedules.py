"""Resume schedules of torch and ignite: the learning rates must be those of a run in one go.

Run inside the environment of a rendered project: ``python3 schedules.py PACKAGE``. Prints the schedules that differ.
"""

import importlib
import io
import sys
import warnings
from typing import Any

STEPS, HALF = 24, 12


def main() -> None:
    """Resume each schedule with the same settings, and with another learning rate."""
    torch: Any = importlib.import_module("torch")
    optim = importlib.import_module(f"{sys.argv[1]}.optim")
    options_of = importlib.import_module(f"{sys.argv[1]}.config").OptimConfig
    ignite: Any = importlib.import_module("ignite.handlers")
    kinds: Any = torch.optim.lr_scheduler
    warnings.simplefilter("ignore")

    def concatenated(optimizer: Any, lr: float) -> Any:
        parts = [
            ignite.LinearCyclicalScheduler(optimizer, "lr", *ends, 2 * STEPS)
            for ends in ((0.0, lr), (lr, 0.0))
        ]
        rates = ignite.ConcatScheduler.simulate_values(STEPS + 1, parts, [5])
        return kinds.LambdaLR(optimizer, lambda step: rates[step][1] / lr)

    def sequential(optimizer: Any, lr: float) -> Any:
        parts = [kinds.LinearLR(optimizer, 0.1, total_iters=5), kinds.CosineAnnealingLR(optimizer, STEPS - 5)]
        return kinds.SequentialLR(optimizer, parts, [5])

    schedules: dict[str, Any] = {
        "OneCycleLR": lambda optimizer, lr: kinds.OneCycleLR(optimizer, lr, STEPS),
        "CosineAnnealingWarmRestarts": lambda optimizer, lr: kinds.CosineAnnealingWarmRestarts(optimizer, 7),
        "SequentialLR": sequential,
        "StepLR": lambda optimizer, lr: kinds.StepLR(optimizer, 3, 0.5),
        "ChainedScheduler": lambda optimizer, lr: kinds.ChainedScheduler(
            [kinds.ConstantLR(optimizer, 0.1, 4), kinds.ExponentialLR(optimizer, 0.9)]
        ),
        "CyclicLR": lambda optimizer, lr: kinds.CyclicLR(optimizer, 0.1 * lr, lr, 4),
        "ConcatScheduler": concatenated,
        "ReduceLROnPlateau": lambda optimizer, lr: kinds.ReduceLROnPlateau(optimizer, patience=1, factor=0.5),
    }

    def create(kind: str, lr: float) -> tuple[Any, Any, Any]:
        options = options_of(lr=lr)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr, momentum=0.9)
        return optimizer, schedules[kind](optimizer, lr), optim.plan_of(optimizer, options, STEPS)

    def rates(optimizer: Any, schedule: Any, first: int, last: int) -> list[float]:
        found = []
        for step in range(first, last):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if not isinstance(schedule, kinds.ReduceLROnPlateau):
                schedule.step()
            elif step % 2:
                optim.follow_score(schedule, [1.0] * (step // 2 + 1))
        return found

    for kind in schedules:
        optimizer, schedule, plan = create(kind, 1.0)
        rates(optimizer, schedule, 0, HALF)
        file = io.BytesIO()
        state = {"optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict(), "plan": plan}
        torch.save(state, file)
        for lr in (1.0, 0.5):
            resumed, its_schedule, its_plan = create(kind, lr)
            file.seek(0)
            optim.restore(resumed, its_schedule, its_plan, torch.load(file, weights_only=True))
            optim.follow_score(its_schedule, [1.0] * (HALF // 2))
            after = rates(resumed, its_schedule, HALF, STEPS)
            whole = rates(*create(kind, lr)[:2], 0, STEPS)[HALF:]
            if max(abs(one - other) for one, other in zip(after, whole, strict=True)) > 1e-12 * lr:
                print(f"{kind} with lr {lr}: {after}, not {whole}")


if __name__ == "__main__":
    main()
