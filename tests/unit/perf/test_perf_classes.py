"""What kernels are, by the names that NVIDIA's and AMD's stacks really give them."""

from __future__ import annotations

import pytest

from conftest import ROOT
from trackwalker.perf.analysis.classes import Engine, class_of, classify, kernel_classes
from trackwalker.perf.formats.reader import read_trace

H200 = ROOT / "tests" / "data" / "perf" / "h200.xplane.pb.gz"

# class: kernel names, then ops, then (kernel, op, path)
CORPUS: dict[str, list[str | tuple[str, str] | tuple[str, str, str]]] = {
    "all-reduce": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>",
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "all-reduce-start.3"),
        ("", "all-reduce.76"),
    ],
    "all-gather": [
        "ncclDevKernel_AllGather_RING_LL",
        ("ncclDevKernel_Generic_4", "all-gather-start.1"),
        ("", "all-gather"),
    ],
    "reduce-scatter": [
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        ("ncclDevKernel_Generic_2", "reduce-scatter-start.12"),
    ],
    "all-to-all": [("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "all-to-all.6")],
    "collective-permute": [("ncclDevKernel_SendRecv", "collective-permute-start.2")],
    "ragged-all-to-all": [
        "void stream_executor::gpu::(anonymous namespace)::RaggedAllToAllKernelImpl<2l>",
        ("ncclDevKernel_SendRecv", "ragged-all-to-all.1"),
    ],
    "moe-exchange": [
        "void deep_ep::intranode::dispatch<8, 768, 8192>",
        "primus_turbo::deep_ep::internode::combine<true>",
    ],
    "send-recv": ["ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", ("", "send-done.1"), ("", "recv")],
    "collective": ["ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"],
    "copy-h2d": ["MemcpyH2D", "CopyHostToDevice", "Memcpy HtoD (Pinned -> Device)"],
    "copy-d2h": ["MemcpyD2H", "CopyDeviceToHost"],
    "copy-p2p": ["MemcpyP2P"],
    "copy-d2d": [
        "MemcpyD2D",
        "CopyDeviceToDevice",
        "__amd_rocclr_copyBuffer",
        "memcpy128",
        "memcpy32_post",
        "MemcpyOther",
    ],
    "memset": ["Memset 0", "__amd_rocclr_fillBufferAligned", "Memset"],
    "attention-forward": [
        "void aiter::fmha_fwd_hd128_bf16",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>",
        "_ZN7ck_tile6kentryILi256ELi2ENS_13FmhaFwdKernelE",
    ],
    "attention-backward": [
        "_ZN5aiter37fmha_bwd_hd128_bf16_causal_a32_rtneE",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_31_64x64x128",
        "void ck_fused_attn::dk_dv_reduce_thd<__hip_bfloat16>",
        "_ZN7ck_tile6kentryINS_16FmhaBwdDQDKDVKernelE",
    ],
    "grouped-gemm": [
        "ck_tile::GroupedGemmKernel",
        "void cutlass::device_kernel<GroupedGemmUniversal>",
        ("", "ragged-dot.3"),
    ],
    "gemm": [
        "nvjet_sm90_tst_128x160_64x5_2x1_v_bz_NNT",
        "gemm_fusion_dot_46",
        "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64_MI16x16x1_SN_K1",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_ldg8_f2f_tn_align8>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
        ("", "dot.14"),
        ("some_kernel", "cublas-gemm.3"),
    ],
    "convolution": [
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64", "cudnn-conv.1"),
        ("Im3d2Col", "cudnn-conv.1.0"),
        "Im3d2Col",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc",
        "miopenSp3AsmConv_v30_3_1_gfx94x",
        "igemm_fwd_gtcx3_nhwc_bf16",
    ],
    "optimiser": [("loop_add_fusion_3", "loop_add_fusion.3", "jit(train_step)/optimizer/add")],
    "normalisation": [
        ("fusion_9", "fusion.9", "jit(train_step)/jvp(decoder)/layers/pre_self_attention_norm/mul"),
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel",
    ],
    "moe-routing": [("loop_gather_fusion", "loop_gather_fusion", "jit(f)/jvp(decoder)/moe_block/dispatch/gather")],
    "softmax": [("fusion_3", "fusion.3", "jit(f)/jvp(logits)/jit(log_softmax)/exp")],
    "random": ["loop_threefry2x32_fusion", ("fusion_1", "fusion.1", "jit(_normal)/erf_inv")],
    "gather-scatter": ["input_scatter_fusion_1", "loop_gather_fusion", ("", "dynamic-slice_bitcast_fusion.5")],
    "reduction": [
        "input_reduce_fusion_7",
        "input_add_reduce_fusion",
        ("fusion_2", "fusion.2", "jit(f)/attn/reduce_max"),
    ],
    "layout": [
        "input_transpose_fusion_4",
        "wrapped_transpose",
        "loop_broadcast_fusion_8",
        ("", "copy.119"),
        ("", "wrapped_broadcast"),
    ],
    "cast": ["loop_convert_fusion", ("fusion_85", "command_buffer_72", "jit(f)/attention/vmap()/convert_element_type")],
    "elementwise": [
        "loop_add_fusion_1",
        "loop_multiply_fusion",
        ("fusion_83", "", "jit(f)/attention/vmap(jit(_where))/select_n"),
    ],
    "fusion": ["fusion_165", ("fusion_4", "fusion.4", "jit(f)/mlp/dot_general")],
    "other": ["my_kernel", ("", "")],
}


@pytest.mark.parametrize(
    ("known", "names"), [(known, names) for known, rows in CORPUS.items() for names in rows], ids=lambda x: str(x)[:40]
)
def test_a_kernel_gets_its_class(known: str, names: str | tuple[str, ...]) -> None:
    assert class_of(*([names] if isinstance(names, str) else names)).id == known


@pytest.mark.parametrize(
    ("inside", "known"),
    [
        (" bitcast broadcast divide exponential reduce select ", "softmax"),
        (" add convert multiply reduce rsqrt ", "normalisation"),
        (" broadcast convert dot multiply ", "gemm"),
        (" add multiply reduce ", "reduction"),
        (" convert transpose ", "layout"),
        (" bitcast convert ", "cast"),
        (" convert multiply ", "elementwise"),
        (" dynamic-update-slice select ", "gather-scatter"),
        (" bitcast ", "cast"),  # the program tells nothing: the end of the path does
    ],
)
def test_a_fusion_without_a_telling_name_is_judged_by_what_it_computes(inside: str, known: str) -> None:
    assert class_of("fusion_83", "command_buffer_72", "jit(f)/attention/convert_element_type", inside).id == known
    assert class_of("loop_add_fusion_1", "", "", inside).id == "elementwise", "a name that tells comes first"


def test_collectives_and_copies_never_count_as_compute() -> None:
    engines = {
        known: class_of(*([rows[0]] if isinstance(rows[0], str) else rows[0])).engine for known, rows in CORPUS.items()
    }
    wait = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all",
            "moe-exchange", "send-recv", "collective"]  # fmt: skip
    copies = ["copy-h2d", "copy-d2h", "copy-p2p", "copy-d2d", "memset"]
    assert {known for known, engine in engines.items() if engine == Engine.COLLECTIVE} == set(wait)
    assert {known for known, engine in engines.items() if engine == Engine.COPY} == set(copies)


def test_names_of_the_recorded_trace_leave_nothing_unclassified() -> None:
    trace = read_trace(H200)
    kernels = trace.devices[0].kernels
    found = classify(kernels, trace.strings)
    assert {found.names[n] for n in set(found.number.tolist())} >= {
        "gemm",
        "memset",
        "copy-d2d",
        "copy-d2h",
        "reduction",
    }
    spent = kernels.end - kernels.start
    unknown = spent[[found.names[n] == "other" for n in found.number]].sum()
    assert unknown == 0
    gemm = sum(int(s) for s, n in zip(spent, found.number, strict=True) if found.names[n] == "gemm")
    assert gemm / spent.sum() > 0.5


def test_classes_have_ids_of_their_own_and_every_pattern_is_of_a_known_kind() -> None:
    ids = [known.id for known in kernel_classes()]
    assert len(ids) == len(set(ids))
    assert all(known.patterns for known in kernel_classes()[:-1])
