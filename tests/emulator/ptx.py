"""Inline PTX of the kernels: the text of an asm statement, as a pattern, and the function of `include/` that does the same.

Texts have single blanks. A function takes the operands of the statement in their order. Those of wgmma begin with the sums.
"""

import re


class UnknownPTX(Exception):
    """An asm statement that no pattern fits; add one here and a function to ``include/ptx.h``."""


_SHAPE = r"wgmma\.mma_async\.sync\.aligned\.m64n\d+"
_WGMMA = _SHAPE + r"k16\.f32\.f16\.f16 \{[^}]*\}, "
_IF = r"\{ \.reg \.pred p; setp\.ne\.b32 p, %\d+, 0; "
_BULK = r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
_LOAD = r"ld\.(relaxed|acquire)\.(gpu|sys)\.global\."

WGMMA = {
    _IF + _WGMMA + r"%\d+, %\d+, p, 1, 1, 0, 0; \}": "ptx_wgmma_ss",
    _IF + _WGMMA + r"\{[^}]*\}, %\d+, p, 1, 1, 0; \}": "ptx_wgmma_rs",
    _WGMMA + r"\{[^}]*\}, %\d+, 1, 1, 1, 1;": "ptx_wgmma_rs_transposed",
    _IF + _SHAPE + r"k32\.s32\.s8\.s8 \{[^}]*\}, %\d+, %\d+, p; \}": "ptx_wgmma_ss_bytes",
}

PTX = {
    r"|fence\..*|cp\.async\.(commit|wait)_group.*|setmaxnreg\..*|wgmma\.(fence|commit_group|wait_group)\..*": "ptx_ignore",
    r"griddepcontrol\..*|prefetch\..*": "ptx_ignore",
    r"cvt\.f32\.f16 .*": "ptx_cvt_f32_f16",
    r"cvt\.rn\.f16\.f32 .*": "ptx_cvt_f16_f32",
    r"cvt\.rn\.f16x2\.f32 .*": "ptx_cvt_f16x2_f32",
    r"min\.NaN\.f32 %0, %0, 0f477FE000;": "ptx_min_65504",
    r"max\.NaN\.f32 %0, %0, 0fC77FE000;": "ptx_max_65504",
    r"sub\.rn\.f16x2 .*": "ptx_sub_f16x2",
    r"mul\.rn\.f16x2 .*": "ptx_mul_f16x2",
    r"add\.rn\.f16x2 .*": "ptx_add_f16x2",
    r"fma\.rn\.f16x2 .*": "ptx_fma_f16x2",
    r"\{\.reg \.b16 l, h; mov\.b32 \{l, h\}, %1; mov\.b32 %0, \{h, h\};\}": "ptx_high_twice",
    r"\{\.reg \.b16 l, h; mov\.b32 \{l, h\}, %1; mov\.b32 %0, \{l, l\};\}": "ptx_low_twice",
    r"ex2\.approx\.ftz\.f32 .*": "ptx_ex2",
    r"rcp\.approx\.ftz\.f32 .*": "ptx_rcp",
    r"st\.shared\.v4\.b32 .*": "ptx_st_shared_b32x4",
    r"st\.shared\.v2\.f32 .*": "ptx_st_shared_f32x2",
    r"st\.shared::cluster\.v4\.f32 .*": "ptx_st_shared_f32x4",
    r"ld\.shared\.v4\.f32 .*": "ptx_ld_shared_f32x4",
    r"\{ \.reg \.pred p; setp\.ne\.s32 p, %0, 0; @p st\.shared\.f32 \[%1\], %2; \}": "ptx_st_shared_if",
    r"mapa\.shared::cluster\.u32 .*": "ptx_mapa",
    r"st\.async\.weak\.shared::cluster\.mbarrier::complete_tx::bytes\.b32 .*": "ptx_st_async",
    r"bar\.sync %0, %1;": "ptx_bar_sync",
    r"bar\.arrive %0, %1;": "ptx_bar_arrive",
    r"\{ \.reg \.pred p, q; setp\.ne\.u32 q, %1, 0; bar\.red\.and\.pred p, %2, %3, q; .*": "ptx_bar_red_and",
    r"\{ \.reg \.pred p; elect\.sync .*": "ptx_elect",
    r"barrier\.cluster\.arrive\.release\.aligned; barrier\.cluster\.wait\.acquire\.aligned;": "ptx_cluster_sync",
    r"barrier\.cluster\.arrive\.\w+\.aligned;": "ptx_cluster_arrive",
    r"barrier\.cluster\.wait\.\w+\.aligned;": "ptx_cluster_wait",
    r"mbarrier\.init\.shared\.b64 .*": "ptx_mbarrier_init",
    r"\{ \.reg \.b64 state; mbarrier\.arrive(\.noComplete)?\.shared\.b64 .*": "ptx_mbarrier_arrive",
    r"cp\.async\.mbarrier\.arrive\.noinc\.shared\.b64 .*": "ptx_mbarrier_arrive",
    r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 .*": "ptx_mbarrier_arrive_expect",
    r"\{ \.reg \.pred p; again: mbarrier\.try_wait\.parity\.shared::cta\.b64 .*": "ptx_mbarrier_wait",
    r"\{ \.reg \.pred p; mbarrier\.test_wait\.parity\.shared\.b64 .*": "ptx_mbarrier_test",
    r"cp\.async\.ca\.shared\.global \[%0\], \[%1\], 4;": "ptx_cp_async_4",
    r"cp\.async\.cg\.shared\.global \[%0\], \[%1\], 16;": "ptx_cp_async_16",
    r"cp\.async\.cg\.shared\.global \[%0\], \[%1\], 16, %2;": "ptx_cp_async_zfill",
    _BULK + r" \[%0\], \[%1\], %2, \[%3\];": "ptx_bulk",
    _BULK + r"\.L2::cache_hint \[%0\], \[%1\], %2, \[%3\], %4;": "ptx_bulk",
    r"cp\.async\.bulk\.tensor\.2d\..*": "ptx_tma_2d",
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32 .*": "ptx_mma_m16n8k16",
    r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32 .*": "ptx_mma_m16n8k8_tf32",
    r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 .*": "ptx_ldmatrix_x4<false>",
    r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 .*": "ptx_ldmatrix_x4<true>",
    r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16 .*": "ptx_movmatrix",
    _LOAD + r"u64 .*": "ptx_ld_u64",
    _LOAD + r"u32 .*": "ptx_ld_u32",
    _LOAD + r"f32 .*": "ptx_ld_f32",
    _LOAD + r"v4\.u32 .*": "ptx_ld_u32x4",
    r"ld\.global\.cg\.v4\.f32 .*": "ptx_ld_f32x4",
    r"st\.relaxed\.(gpu|sys)\.global\.u16 .*": "ptx_st_u16",
    r"st\.relaxed\.(gpu|sys)\.global\.u32 .*": "ptx_st_u32",
    r"st\.relaxed\.(gpu|sys)\.global\.v2\.u32 .*": "ptx_st_u32x2",
    r"st\.relaxed\.(gpu|sys)\.global\.f32 .*": "ptx_st_f32",
    r"red\.relaxed\.(gpu|sys)\.global\.add\.u64 .*": "ptx_red_add_u64",
    r"red\.relaxed\.gpu\.global\.add\.v4\.f32 .*": "ptx_red_add_f32x4",
    r"mov\.u64 %0, %%globaltimer;": "ptx_globaltimer",
    r"trap;": "ptx_trap",
}


def call(text, operands):
    """C++ that does what an asm statement does.

    Parameters
    ----------
    text : str
        PTX with single blanks.
    operands : list of str
        Expressions, outputs first.
    """
    for pattern, name in WGMMA.items():
        if re.fullmatch(pattern, text):
            n = text.partition("{%")[2].partition("}")[0].count("%") + 1
            sums = ", ".join(f"&{operand}" for operand in operands[:n])
            kind = "int" if name.endswith("bytes") else "float"
            return f"{{ {kind}* emu_sums[] = {{{sums}}}; emu::{name}(emu_sums, {', '.join([str(n), *operands[n:]])}); }}"
    for pattern, name in PTX.items():
        if re.fullmatch(pattern, text):
            return f"emu::{name}({', '.join(operands)});"
    raise UnknownPTX(f"the emulator has no function for {text!r}")
