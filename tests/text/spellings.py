"""Other spellings of HLO texts: what a printer of XLA's leaves out, writes otherwise, or would never write.

Some are the same module to XLA, some another one, and some it rejects; its parser is the judge of each.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator

from hloexec.core.dtypes import ELEMENT_TYPES

_LAYOUT = r"\{[^{}\"/=]*\}"
_ARRAY = rf"(?:{'|'.join(ELEMENT_TYPES)})\[[0-9,<=]*\](?:{_LAYOUT})?"
_NAME = r"%?[A-Za-z_][\w.\-]*"
_SHAPE = rf"(?:{_ARRAY}|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))"
_INSTRUCTION = re.compile(
    rf"^(?P<root> *(?:ROOT )?)(?P<name>{_NAME}) = (?P<shape>{_SHAPE}) (?P<opcode>[a-z][a-z0-9\-]*)"
    rf"\((?P<operands>[^()]*)\)(?P<attributes>.*)$",
    re.MULTILINE,
)
_ARRAYS = re.compile(_ARRAY)
_ATTRIBUTE = re.compile(r", (?:[a-z_]+|control-predecessors)=(?:\{(?:[^{}]|\{[^{}]*\})*\}|\"[^\"]*\"|[^,{}()\s]+)")
_STATED = ("parameter", "constant")

Change = Callable[[str, random.Random], str]


def spellings(texts: Iterable[str], count: int, seed: int) -> Iterator[str]:
    """`count` texts, each another spelling of one of `texts`."""
    rng = random.Random(seed)
    bases = list(texts)
    for _ in range(count):
        yield spelling(rng.choice(bases), rng)


def spelling(text: str, rng: random.Random) -> str:
    """`text` with one to four changes, most of which XLA may accept."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        text = rng.choice(_CHANGES)(text, rng)
    return text


def _instructions(text: str, *, stated: bool = False) -> list[re.Match[str]]:
    found = _INSTRUCTION.finditer(text)
    return [match for match in found if stated or match["opcode"] not in _STATED]


def _replaced(text: str, span: tuple[int, int], by: str) -> str:
    return text[: span[0]] + by + text[span[1] :]


def _without_shape(text: str, rng: random.Random) -> str:
    """An instruction does not state its result shape."""
    found = _instructions(text)
    if not found:
        return text
    match = rng.choice(found)
    return _replaced(text, match.span("shape"), "").replace(" =  ", " = ")


def _without_shapes(text: str, rng: random.Random) -> str:
    """No instruction of some opcodes states its result shape."""
    opcodes = sorted({match["opcode"] for match in _instructions(text)})
    chosen = set(rng.sample(opcodes, rng.randint(0, len(opcodes) // 3 + 1) if len(opcodes) > 1 else len(opcodes)))
    for match in reversed(_instructions(text)):
        if match["opcode"] in chosen:
            start, end = match.span("shape")
            text = _replaced(text, (start, end + 1), "")
    return text


def _without_signatures(text: str, rng: random.Random) -> str:
    """Computations do not state their parameters and results; the header may not either."""
    text = re.sub(rf"^((?:ENTRY )?{_NAME}) \(.*\) -> .* \{{$", r"\1 {", text, flags=re.MULTILINE)
    if rng.random() < 0.5:
        text = re.sub(r", entry_computation_layout=\{\(.*?\)->.*?\}(?=,|\n|$)(?!\))", "", text, count=1)
    return text


def _attribute_twice(text: str, rng: random.Random) -> str:
    """An attribute is given twice, or to an instruction to which it may not belong."""
    found = list(_ATTRIBUTE.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    other = match if rng.random() < 0.7 else rng.choice(found)
    return _replaced(text, (match.end(), match.end()), other[0])


def _without_attribute(text: str, rng: random.Random) -> str:
    found = list(_ATTRIBUTE.finditer(text))
    return _replaced(text, rng.choice(found).span(), "") if found else text


def _other_case(text: str, rng: random.Random) -> str:
    """A word of an attribute, or an opcode, in upper or lower case or with a capital."""
    found = [match.span(1) for match in re.finditer(r"=\{?([A-Za-z][A-Za-z0-9_]*)\b", text)]
    found += [match.span("opcode") for match in _instructions(text)][:1]
    if not found:
        return text
    span = rng.choice(found)
    return _replaced(text, span, rng.choice((str.upper, str.lower, str.capitalize))(text[slice(*span)]))


def _without_name(text: str, rng: random.Random) -> str:
    """An instruction, a computation or the module has no name, or names have no percent sign."""
    choice = rng.randrange(4)
    if choice == 0:
        return text.replace("%", "")
    if choice == 1:
        return re.sub(r"^HloModule [^,\n]*", rng.choice(("HloModule", "", "HloModule m")), text)
    if choice == 2:
        return re.sub(r"^ENTRY ", "", text, flags=re.MULTILINE)
    found = _instructions(text, stated=True)
    if not found:
        return text
    match = rng.choice(found)
    return _replaced(text, (match.start("name"), match.end("name") + len(" = ")), "")


def _nested(text: str, rng: random.Random) -> str:
    """Instructions without attributes stand in the place of the operands that name them."""
    by_name = {}
    places = []
    for match in _instructions(text, stated=True):
        # XLA makes a module with two parameters 0 of a nested one, here and there.
        if not match["attributes"] and match["opcode"] != "parameter":
            by_name[match["name"].lstrip("%")] = match
        places += [
            (match, operand) for operand in re.finditer(_NAME, match["operands"]) if match["opcode"] not in _STATED
        ]
    places = [(match, operand) for match, operand in places if operand[0].lstrip("%") in by_name]
    for match, operand in sorted(
        rng.sample(places, min(len(places), rng.choice((1, 1, 2, 3)))), key=_start, reverse=True
    ):
        inner = by_name[operand[0].lstrip("%")]
        start = match.start("operands")
        shape = inner["shape"] + " " if rng.random() < 0.7 else ""
        written = f"{shape}{inner['opcode']}({inner['operands']})"
        text = _replaced(text, (start + operand.start(), start + operand.end()), written)
    return text


def _start(place: tuple[re.Match[str], re.Match[str]]) -> int:
    return place[0].start("operands") + place[1].start()


def _operand_shapes(text: str, rng: random.Random) -> str:
    """The shapes of operands before their names, as they are or not quite so."""
    shapes: dict[str, str] = {}
    for match in _instructions(text, stated=True):
        shapes.setdefault(match["name"].lstrip("%"), match["shape"])
    found = [match for match in _instructions(text) if match["operands"]]
    for match in sorted(rng.sample(found, min(len(found), 3)), key=lambda match: match.start(), reverse=True):

        def shaped(operand: re.Match[str]) -> str:
            shape = shapes.get(operand[0].lstrip("%"))
            if shape is None:
                return operand[0]
            other = _other_array(shape, rng) if rng.random() < 0.3 and _ARRAYS.fullmatch(shape) else shape
            return f"{other} {operand[0]}"

        text = _replaced(text, match.span("operands"), re.sub(_NAME, shaped, match["operands"]))
    return text


def _other_array(shape: str, rng: random.Random) -> str:
    """An array shape with another layout, or with other dynamic dimensions."""
    head, _, layout = shape.partition("{")
    element_type, _, sizes = head.rstrip("]").partition("[")
    dimensions = sizes.split(",") if sizes else []
    if rng.random() < 0.4 and dimensions:
        place = rng.randrange(len(dimensions))
        size = dimensions[place]
        dimensions[place] = size.removeprefix("<=") if size.startswith("<=") else f"<={size}"
        return f"{element_type}[{','.join(dimensions)}]" + ("{" + layout if layout else "")
    order = list(map(str, range(len(dimensions))))
    rng.shuffle(order)
    marks = rng.choice(("", "", "", ":S(1)", ":T(8,128)", ":T(2)S(5)", ":E(4)", ":E(4)S(1)", ":D(D)"))
    if marks == ":E(4)" and rng.random() < 0.5:
        element_type = rng.choice(("s4", "u4", element_type))
    return f"{head}{{{','.join(order)}{marks}}}" if rng.random() < 0.8 else head


def _other_shape(text: str, rng: random.Random) -> str:
    """An array shape becomes another in one place, where it is defined, or everywhere."""
    found = list(_ARRAYS.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    other = _other_array(match[0], rng)
    if rng.random() < 0.5:
        return re.sub(re.escape(match[0]) + r"(?![{\w])", lambda _: other, text)
    return _replaced(text, match.span(), other)


def _other_layouts(text: str, rng: random.Random) -> str:
    """Half the array shapes become others wherever they stand."""
    others = {shape: _other_array(shape, rng) for shape in sorted(set(_ARRAYS.findall(text))) if rng.random() < 0.5}
    return _ARRAYS.sub(lambda match: others.get(match[0], match[0]), text)


def _without_layouts(text: str, rng: random.Random) -> str:
    return _ARRAYS.sub(lambda match: match[0].partition("{")[0], text)


def _control(text: str, rng: random.Random) -> str:
    """Control predecessors are added, or all of them go."""
    if rng.random() < 0.2:
        return re.sub(r", control-predecessors=\{[^{}]*\}", "", text)
    found = _instructions(text, stated=True)
    if len(found) < 2:
        return text
    place = rng.randrange(1, len(found))
    earlier = [found[rng.randrange(max(place - 4, 0), place)]["name"] for _ in range(rng.choice((1, 1, 2)))]
    end = found[place].end("attributes")
    return _replaced(text, (end, end), f", control-predecessors={{{', '.join(earlier)}}}")


_WRAPPED = """%wrapped_by_hand {{
{parameters}
  ROOT %wrapped.root = {shape} {opcode}({names}){attributes}
}}{thread}

"""


def _asynchronous(text: str, rng: random.Random) -> str:
    """An instruction becomes a start, perhaps an update, and a done, spelled out or by the opcode's own names."""
    shapes = {match["name"].lstrip("%"): match["shape"] for match in _instructions(text, stated=True)}
    found = [match for match in _instructions(text) if match["opcode"] not in ("tuple", "get-tuple-element")]
    if not found:
        return text
    match = rng.choice(found)
    operands = re.findall(rf"(?<!\w){_NAME}(?=,|$)", match["operands"])
    operand_shapes = [shapes.get(name.lstrip("%"), "f32[]") for name in operands]
    if rng.random() < 0.1 and operand_shapes:
        operand_shapes[0] = _other_array("f32[2,3]{1,0}", rng)
    state = rng.choice((", u32[]", ", s32[]", "", ", u32[]{:S(2)}"))
    whole = f"(({', '.join(operand_shapes)}), {match['shape']}{state})"
    thread = rng.choice(("", "", ', async_execution_thread="worker"'))
    repeated = rng.choice(("", "", thread, ', async_execution_thread="main"'))
    own = rng.random() < 0.5
    opcode, carried = match["opcode"] if own else "async", match["attributes"] if own else ", calls=%wrapped_by_hand"
    end = match["opcode"] if rng.random() < 0.9 and own else "async"
    lines = [f"  %by_hand.start = {whole} {opcode}-start({match['operands']}){carried}{thread}"]
    last = "%by_hand.start"
    if rng.random() < 0.4:
        update = whole if rng.random() < 0.8 else _other_array("f32[2]{0}", rng)
        lines.append(f"  %by_hand.update = {update} {end}-update({last}){repeated}")
        last = "%by_hand.update"
    lines.append(f"{match['root']}{match['name']} = {match['shape']} {end}-done({last}){repeated}")
    if rng.random() < 0.1:
        lines[-1:-1] = [line.replace("by_hand.", "by_hand_again.") for line in lines[:-1]]
    text = _replaced(text, match.span(), "\n".join(lines))
    if own:
        return text
    parameters = "\n".join(f"  %wrapped.{k} = {shape} parameter({k})" for k, shape in enumerate(operand_shapes))
    names = ", ".join(f"%wrapped.{k}" for k in range(len(operands)))
    ending = ', execution_thread="worker"' if rng.random() < 0.5 else ""
    wrapped = _WRAPPED.format(
        parameters=parameters, shape=match["shape"], opcode=match["opcode"], names=names, thread=ending,
        attributes=match["attributes"],
    )  # fmt: skip
    start = re.search(rf"^(?:ENTRY )?{_NAME} [^=\n]*\{{$", text, flags=re.MULTILINE)
    caller = match.start() if start is None else start.start()
    return text[:caller] + wrapped + text[caller:]


_CHANGES: tuple[Change, ...] = (
    *[_without_shape] * 4,
    *[_without_shapes] * 2,
    _without_signatures,
    *[_attribute_twice] * 2,
    *[_without_attribute] * 2,
    *[_other_case] * 2,
    *[_without_name] * 2,
    *[_nested] * 3,
    *[_operand_shapes] * 2,
    *[_other_shape] * 4,
    *[_other_layouts] * 4,
    _without_layouts,
    *[_control] * 2,
    *[_asynchronous] * 4,
)
