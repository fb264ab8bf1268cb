"""A calculator that reads arithmetic and nothing else: numbers, + - * / // % ** and brackets."""

import ast
import operator
import warnings
from collections.abc import Callable

Number = int | float

LONGEST = 200
"""Characters of an expression; a longer one is no sum that anybody needs."""
LARGEST_POWER = 100
LARGEST = 10**15
"""Values beyond are refused: floats lose their last digits there."""

OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def evaluate(expression: str) -> Number:
    """The value of an expression. Raises ValueError, with the reason, for anything that is not arithmetic."""
    if len(expression) > LONGEST:
        raise ValueError(f"the expression has {len(expression)} characters, more than {LONGEST}")
    try:
        value = _value(_parse(expression))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression!r} is not arithmetic") from error
    except (ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"{expression!r} has no value: {error}") from error
    if not abs(value) <= LARGEST:
        raise ValueError(f"the value of {expression!r} is too large")
    return value


def show(value: Number) -> str:
    """A number as people write it: whole where it is whole, otherwise with two decimals at most."""
    rounded = round(value, 2)
    return str(int(rounded)) if rounded == int(rounded) else str(rounded)


def _parse(expression: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of `2else`, which is a model's slip and not the program's
        return ast.parse(expression.strip(), mode="eval").body


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return _apply(type(sign), _value(left), _value(right))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


def _apply(sign: type[ast.operator], left: Number, right: Number) -> Number:
    if sign is ast.Pow and (abs(right) > LARGEST_POWER or abs(left) > 10**6):
        raise ValueError("the power is too large")  # as its numbers may be, for whoever reads this
    value = OPERATORS[sign](left, right)
    if isinstance(value, complex):
        raise ValueError("the power is not a real number")
    return value
