"""Translate a preprocessed CUDA source to C++: PTX becomes calls, shared variables become references to a block's memory."""

import re

from emulator import ptx

MACROS = (
    "-D__global__=EMU_GLOBAL",
    "-D__shared__=EMU_SHARED",
    "-D__cluster_dims__(...)=EMU_CLUSTER(__VA_ARGS__)",
    "-D__launch_bounds__(...)=",
    "-D__align__(n)=alignas(n)",
    "-D__device__=",
    "-D__host__=",
    "-D__forceinline__=inline",
    "-D__noinline__=__attribute__((noinline))",
    "-D__grid_constant__=",
)
"""Options of the preprocessor: the names that `to_cpp` replaces, and what C++ has another word for."""

_ASM = re.compile(r"\basm\b\s*(?:volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TEXT = re.compile(r'(?:\s*"(?:[^"\\]|\\.)*"|\s+)+')
_ALIGNED = r"(?:alignas\s*\([^)]*\)\s*)?"
_DYNAMIC = re.compile(rf"extern\s+EMU_SHARED\s+{_ALIGNED}(\w+)\s+(\w+)\s*\[\s*\]\s*;")
_SHARED = re.compile(rf"EMU_SHARED\s+{_ALIGNED}([\w:]+)\s+([^;]+);")
_TO_INT = re.compile(r"(?<![\w)])\(int\)(?=\s*[\w(~!*&-])")
_ENTRY = re.compile(r'extern\s+"C"\s+EMU_GLOBAL\s+void\s+(.*?)\b(\w+)\s*\(([^)]*)\)\s*\{', re.DOTALL)
_CLUSTER = re.compile(r"EMU_CLUSTER\s*\(([^,]*),[^)]*\)")


def to_cpp(text):
    """Return C++ with a function ``emu_call_NAME`` for each kernel, which takes the addresses of its arguments."""
    text = _without_asm(text)
    text = _DYNAMIC.sub(r"\1* const \2 = (\1*)emu_thread->shared;", text)
    text = _SHARED.sub(_shared, text)
    text = _TO_INT.sub("(emu::Int)", text)
    callers = []

    def entry(match):
        attributes, name, parameters = match.groups()
        cluster = _CLUSTER.search(attributes)
        callers.append(_caller(name, parameters, cluster[1] if cluster else "1"))
        return f"static void {name}({parameters}) {{"

    text = _ENTRY.sub(entry, text)
    head = 'extern "C" { int emu_static_bytes = 0; }'
    return "\n".join(['#include "tensor_cores.h"', head, text, *callers])


def _without_asm(text):
    made, at = [], 0
    for match in _ASM.finditer(text):
        end = _closing(text, match.end() - 1)
        body = re.sub(r"\n#[^\n]*", "", text[match.end() : end])
        template = _TEXT.match(body)
        instructions = "".join(_STRING.findall(template[0])).replace("\\n", " ").replace("\\t", " ")
        sections = _split(body[template.end() :], ":")[1:3]
        operands = [operand[operand.index("(") :] for section in sections for operand in _split(section) if "(" in operand]
        made += [text[at : match.start()], ptx.call(" ".join(instructions.split()), operands)]
        at = text.index(";", end) + 1
    return "".join([*made, text[at:]])


def _shared(match):
    made = []
    for declarator in _split(match[2]):
        name, size = re.match(r"\s*(\w+)\s*(.*)", declarator, re.DOTALL).groups()
        kind, place = f"emu_type_{name}", f"emu_at_{name}"
        made.append(
            f"typedef {match[1]} {kind} {size}; static SharedVariable {place}; "
            f"{kind}& {name} = *({kind}*)emu_shared({place}, sizeof({kind}), &emu_static_bytes);"
        )
    return " ".join(made)


def _caller(name, parameters, cluster):
    kinds = [re.match(r"(.*?)\w+\s*$", p.replace("__restrict__", "").strip(), re.DOTALL)[1] for p in _split(parameters)]
    passed = ", ".join(f"*(std::remove_const_t<{kind}>*)a[{i}]" for i, kind in enumerate(kinds))
    sizes = ", ".join([*(f"sizeof({kind})" for kind in kinds), "0"])
    return (
        f'extern "C" {{ void emu_call_{name}(void** a) {{ {name}({passed}); }}\n'
        f"int emu_sizes_{name}[] = {{{sizes}}}; int emu_cluster_{name} = {cluster}; }}"
    )


def _closing(text, at):
    """Index of the bracket that closes the one at `at`."""
    depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[()]', text[at:]):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if not depth:
            return at + match.start()
    raise ValueError("a bracket is not closed")


def _split(text, by=","):
    """Parts of a text between separators outside of brackets and strings."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf'"(?:[^"\\]|\\.)*"|[()\[\]{{}}{by}]', text):
        if match[0] == by and not depth:
            parts.append(text[start : match.start()])
            start = match.end()
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(match[0], 0)
    return [*parts, text[start:]]
