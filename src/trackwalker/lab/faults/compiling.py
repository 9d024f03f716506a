"""Programs that are compiled again and again, or for long."""

from __future__ import annotations

from trackwalker.lab.faults.base import FLOWS, Place, Show, fault, waited
from trackwalker.lab.faults.shapes import cooler_when_waiting, lost_since
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


@fault
def recompilation(run: Run, begin: Place, every: int = 7, seconds: float = 55.0) -> Show:
    """The program is compiled again and again."""
    first = run.at(begin)
    hits = [s for s in range(first, run.at(1.0)) if (s - first) % every == 0]
    for s in hits:
        run.extra[s - run.first] += seconds * run.rng.uniform(0.9, 1.1)

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in hits:
            t = run.time_of(s) + 1.0
            log.everyone(t, "Compiling module jit_train_step for GPU")
            log.everyone(t + 0.5 * seconds, f"Compilation of jit_train_step took {seconds:.1f} s")
            sheet.scale("hw_gpu_power_watts", 0.35, t, t + seconds)

    return show


@fault
def slow_xla(run: Run, alarm_s: float = 120.0) -> Show:
    """A large program compiles for long: XLA's alarm goes off on all hosts and later says how long it took."""

    def show(sheet: Sheet, log: JobLog) -> None:
        begin, long = run.steps_from + 2.0, run.spec.compile_s - 6.0
        stars = "*" * 32
        module = (
            "[Compiling module jit_train_step for GPU] Very slow compile? If you want to file a bug, run with envvar "
        )
        for rank in range(len(run.hosts)):
            moment = begin + alarm_s + float(run.rng.uniform(0, 1.0))
            head = f"E{glog(moment)}   28114 slow_operation_alarm.cc:73]"
            what = f"{module}XLA_FLAGS=--xla_dump_to=/tmp/foo and attach the results."
            log.say(moment, f"{head} \n{stars}\n{what}\n{stars}", rank)
            done = begin + long + float(run.rng.uniform(0, 1.0))
            took = f"{int(long // 60)}m{long % 60:.4f}s"
            head = f"E{glog(done)}   27562 slow_operation_alarm.cc:140] The operation took {took}"
            log.say(done, f"{head}\n{stars}\n{what}\n{stars}", rank)
        sheet.add("hw_gpu_power_watts", run.profile.idle_w + 12.0 - run.profile.active_w, begin, begin + long)
        sheet.add("hw_gpu_temperature_celsius", -24.0, begin, begin + long)
        sheet.put("ray_node_gpus_utilization", 0.0, begin, begin + long)
        sheet.add("hw_procs_running", 26.0, begin, begin + long)
        sheet.add("ray_node_cpu_utilization", 30.0, begin, begin + long)
        for metric in FLOWS:
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, begin, begin + long)

    return show


@fault
def dynamo_recompiles(run: Run, begin: Place, share: float, seconds: float) -> Show:
    """Batches of ever new shapes: torch.compile begins anew for each, as TORCH_LOGS=recompiles tells."""
    first = run.at(begin)
    hits = [s for s in range(first, run.first + run.spec.steps) if s == first or run.rng.random() < share]
    lengths = [seconds * float(run.rng.uniform(0.8, 1.25)) for _ in hits]
    shapes = [int(8192 - 128 * run.rng.integers(1, 40)) for _ in hits]
    for s, n in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += n

    def show(sheet: Sheet, log: JobLog) -> None:
        for number, (s, n, shape) in enumerate(zip(hits, lengths, shapes, strict=True), 1):
            time = run.time_of(s) + 0.8
            for rank in range(len(run.hosts)):
                moment = time + float(run.rng.uniform(0, 0.6))
                label = f"[rank{rank * run.spec.gpus}]:V{glog(moment)[:-3]}000 1190 torch/_dynamo/guards.py:2997]"
                head = f"{label} [0/{number}] [__recompiles]"
                log.say(
                    moment,
                    f"{head} Recompiling function forward in /workspace/torchtitan/models/llama3/model/model.py:401\n"
                    f"{head}     triggered by the following guard failure(s):\n"
                    f"{head}     - 0/{number - 1}: tensor 'tokens' size mismatch at index 1. "
                    f"expected 8192, actual {shape}",
                    rank,
                )
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w + 30.0, time, time + n - 1)
            sheet.add("hw_procs_running", 26.0, time, time + n - 1)
            sheet.add("ray_node_cpu_utilization", 30.0, time, time + n - 1)

    return show


@fault
def jit_recompiles_packed(run: Run, begin: Place, share: float, seconds: float) -> Show:
    """Packed batches of ever new lengths: jit compiles for each new shape, as JAX_LOG_COMPILES tells."""
    first = run.at(begin)
    hits = [s for s in range(first, run.first + run.spec.steps) if s == first or run.rng.random() < share]
    lengths = [seconds * float(run.rng.uniform(0.85, 1.2)) for _ in hits]
    shapes = [int(8192 - 64 * run.rng.integers(1, 90)) for _ in hits]
    for s, n in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += n

    def show(sheet: Sheet, log: JobLog) -> None:
        rows = len(run.hosts) * run.spec.gpus
        spread = f"GSPMDSharding({{devices=[{rows},1]<=[{rows}]}})"
        for s, n, shape in zip(hits, lengths, shapes, strict=True):
            if s - run.first >= len(run.ends):
                continue
            time = run.time_of(s) + 0.6
            for rank in range(len(run.hosts)):
                a, b = time + float(run.rng.uniform(0, 0.5)), time + n + float(run.rng.uniform(-0.3, 0.3))
                log.say(
                    a,
                    f"W{glog(a)}   27562 pxla.py:1906] Compiling jit(train_step) with global shapes and types "
                    f"[ShapedArray(int32[{rows},{shape}]), ShapedArray(int32[{rows},{shape}])]. Argument mapping: "
                    f"({spread}, {spread}).",
                    rank,
                )
                log.say(
                    b,
                    f"W{glog(b)}   27562 dispatch.py:206] Finished XLA compilation of jit(train_step) in {n:.9f} sec",
                    rank,
                )
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w + 15.0, time, time + n)
            sheet.add("hw_procs_running", 24.0, time, time + n)
            sheet.add("ray_node_cpu_utilization", 22.0, time, time + n)
            for metric in FLOWS:
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, time, time + n)

    return show


@fault
def jit_recompiles(run: Run, begin: Place, share: float, seconds: float) -> Show:
    """Sequences are packed to ever new lengths: jit compiles again for each, as jax_log_compiles tells."""
    first = run.at(begin)
    hits = [s for s in range(first, run.first + run.spec.steps) if s == first or run.rng.random() < share]
    lengths = [seconds * float(run.rng.uniform(0.85, 1.2)) for _ in hits]
    widths = [int(4096 - 64 * run.rng.integers(1, 40)) for _ in hits]
    for s, n in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += n

    def show(sheet: Sheet, log: JobLog) -> None:
        for s, n, width in zip(hits, lengths, widths, strict=True):
            if s - run.first >= len(run.seconds):
                continue
            time = run.time_of(s) + 0.5
            shape = f"ShapedArray(int32[24,{width}])"
            log.everyone(time, "Finished tracing + transforming train_step for pjit in 1.873 sec")
            log.everyone(time + 1.6, f"Compiling train_step with global shapes and types [{shape}, {shape}].")
            log.everyone(time + n - 1.6, f"Finished XLA compilation of jit(train_step) in {n - 4:.9f} sec")
            sheet.add("hw_gpu_power_watts", run.profile.idle_w + 15.0 - run.profile.active_w, time, time + n - 1)
            sheet.add("hw_gpu_temperature_celsius", -22.0, time + 5, time + n - 1)
            sheet.put("ray_node_gpus_utilization", 0.0, time, time + n - 1)
            sheet.add("hw_procs_running", 20.0, time, time + n - 1)
            sheet.add("ray_node_cpu_utilization", 24.0, time, time + n - 1)
            for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
                sheet.scale(f"hw_rdma_{metric}_total", 0.0, time, time + n - 1)

    return show


@fault
def recompile_limit(run: Run, begin: Place, seconds: float, factor: float, every: int = 3, limit: int = 8) -> Show:
    """Sequences of new lengths: torch.compile tries eight times, gives up, and the layer runs uncompiled from then."""
    first = run.at(begin)
    hits = list(range(first, run.at(1.0), every))[:limit]
    lengths = [seconds * float(run.rng.uniform(0.8, 1.25)) for _ in hits]
    shapes = [int(8192 - 128 * run.rng.integers(1, 40)) for _ in hits]
    for s, much in zip(hits, lengths, strict=True):
        run.extra[s - run.first] += much
    run.slow(hits[-1] + 1, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        where = "/opt/megatron-lm/megatron/core/transformer/transformer_layer.py:431"
        for number, (s, much, shape) in enumerate(zip(hits, lengths, shapes, strict=True), 1):
            if s - run.first >= len(run.ends):
                continue
            time = run.time_of(s) + 0.9
            for rank in range(len(run.hosts)):
                moment = time + float(run.rng.uniform(0, 0.7))
                head = f"V{glog(moment)[:-3]}000 1190 torch/_dynamo/guards.py:2997] [3/{number}] [__recompiles]"
                log.say(
                    moment,
                    f"{head} Recompiling function _forward_mlp in {where}\n"
                    f"{head}     triggered by the following guard failure(s):\n"
                    f"{head}     - 3/{number - 1}: tensor 'hidden_states' size mismatch at index 0. "
                    f"expected 8192, actual {shape}",
                    rank,
                )
                if number == limit:
                    late = moment + much
                    head = f"W{glog(late)[:-3]}000 1190 torch/_dynamo/convert_frame.py:1016] [3/8]"
                    log.say(
                        late,
                        f"{head} torch._dynamo hit config.recompile_limit (8)\n"
                        f"{head}    function: '_forward_mlp' ({where})\n"
                        f"{head}    last reason: 3/7: tensor 'hidden_states' size mismatch at index 0. "
                        f"expected 8192, actual {shape}\n"
                        f'{head} To log all recompilation reasons, use TORCH_LOGS="recompiles".\n'
                        f"{head} To diagnose recompilation issues, see "
                        "https://pytorch.org/docs/main/torch.compiler_troubleshooting.html.",
                        rank,
                    )
            sheet.add("hw_gpu_power_watts", run.profile.idle_w - run.profile.active_w + 20.0, time, time + much)
            sheet.add("hw_procs_running", 24.0, time, time + much)
            sheet.add("ray_node_cpu_utilization", 25.0, time, time + much)
        # Uncompiled kernels keep the GPUs busy, less efficiently: nobody waits for anybody.
        since = run.time_of(hits[-1] + 1)
        sheet.add("hw_gpu_power_watts", 0.8 * waited(run, factor), since, run.work_end)
        sheet.add(
            "hw_gpu_temperature_celsius",
            0.8 * cooler_when_waiting(run),
            since,
            run.work_end,
            shape=lost_since(run, hits[-1] + 1),
        )

    return show


@fault
def long_compile(run: Run) -> Show:
    """The first step is compiled for minutes: processors busy, GPUs idle, XLA's alarm on every rank."""

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.steps_from, run.steps_from + run.spec.compile_s
        sheet.add("hw_gpu_power_watts", run.profile.idle_w + 12.0 - run.profile.active_w, since, until)
        sheet.add("hw_gpu_temperature_celsius", 40.0 - run.profile.hot_c, since, until)
        sheet.scale("hw_gpu_clock_mhz", 0.08, since, until)
        sheet.put("ray_node_gpus_utilization", 0.0, since, until)
        sheet.add("hw_procs_running", 22.0, since, until)
        sheet.add("ray_node_cpu_utilization", 25.0, since, until)
        for metric in ("tx_bytes", "rx_bytes", "tx_pkts", "ccl_tx_pkts"):
            sheet.scale(f"hw_rdma_{metric}_total", 0.0, since, until)
        stars = "*" * 32
        asks = (
            "[Compiling module jit_train_step for GPU] Very slow compile? If you want to file a bug, run with envvar "
            "XLA_FLAGS=--xla_dump_to=/tmp/foo and attach the results."
        )
        took = f"The operation took {int(run.spec.compile_s) // 60}m{run.spec.compile_s % 60:.6f}s"
        for rank in range(len(run.hosts)):
            for moment, head in ((since + 120.0, ""), (until, f"{took}\n\n")):
                time = moment + float(run.rng.uniform(0, 3.0))
                said = f"{stars}\n{asks}\n{stars}"
                where = f"E{glog(time)}   27680 slow_operation_alarm.cc:{140 if head else 73}]"
                log.say(time, f"{where} {head}\n{said}", rank)

    return show
