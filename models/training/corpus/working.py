"""The working of sums, digit by digit, as the model writes it when it thinks."""

from .core import listing

SHOWN = {"+": "+", "-": "-", "*": "×", "/": "/"}


def apply(a: int, operator: str, b: int) -> int:
    """The value of ``a operator b``; a quotient is exact."""
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[operator]


def add_steps(a: int, b: int) -> str:
    """Column addition from the right; both numbers are non-negative."""
    left, right = str(a)[::-1], str(b)[::-1]
    steps, carry = [], 0
    for at in range(max(len(left), len(right))):
        digits = [int(part[at]) for part in (left, right) if at < len(part)] + [carry] * (carry > 0)
        total = sum(digits)
        carry = total // 10
        sum_text = " + ".join(map(str, digits)) + f" = {total}" if len(digits) > 1 else f"{total}"
        steps.append(f"{sum_text}, write {total % 10}" + (f", carry {carry}" if carry else ""))
    if carry:
        steps.append(f"write {carry}")
    return "; ".join(steps) + f". {a} + {b} = {a + b}."


def subtract_steps(a: int, b: int) -> str:
    """Column subtraction from the right, ``a`` at least ``b`` and both non-negative."""
    left, right = str(a)[::-1], str(b)[::-1]
    steps, borrow = [], 0
    for at in range(len(left)):
        top = int(left[at])
        taken = ([int(right[at])] if at < len(right) else []) + [borrow] * (borrow > 0)
        borrow = int(top < sum(taken))
        top += 10 * borrow
        text = " - ".join(map(str, [top, *taken])) + (f" = {top - sum(taken)}" if taken else "")
        steps.append(f"{text}, write {top - sum(taken)}" + (", borrow 1" if borrow else ""))
    return "; ".join(steps) + f". {a} - {b} = {a - b}."


def digit_product_steps(a: int, digit: int) -> str:
    """Column product of ``a`` and one digit."""
    steps, carry = [], 0
    for figure in reversed(str(a)):
        product = int(figure) * digit
        total = product + carry
        text = f"{figure} × {digit} = {product}" + (f", + {carry} = {total}" if carry else "")
        carry = total // 10
        steps.append(f"{text}, write {total % 10}" + (f", carry {carry}" if carry else ""))
    if carry:
        steps.append(f"write {carry}")
    return "; ".join(steps) + f". {a} × {digit} = {a * digit}."


def multiply_parts(a: int, b: int) -> list[tuple[int, int]]:
    """The decimal parts of ``b`` with their products: 347, 26 gives (20, 6940), (6, 2082)."""
    text = str(b)
    parts = [int(figure) * 10 ** (len(text) - at - 1) for at, figure in enumerate(text)]
    return [(part, a * part) for part in parts if part]


def multiply_steps(a: int, b: int) -> str:
    """Product by the decimal parts of ``b``, each worked by digits, then added up."""
    if b < 10 and a < 10:
        return f"{a} × {b} = {a * b}."
    if b < 10:
        return digit_product_steps(a, b)
    parts = multiply_parts(a, b)
    lines = [f"{a} × {b}: split {b} into {listing([str(part) for part, _ in parts])}."]
    for part, product in parts:
        figure = int(str(part).rstrip("0"))
        lines.append(digit_product_steps(a, figure) + (f" So {a} × {part} = {product}." if part != figure else ""))
    total = parts[0][1]
    for _, product in parts[1:]:
        lines.append(add_steps(total, product))
        total += product
    return "\n".join(lines)


def divide_steps(a: int, b: int) -> str:
    """Long division with its rest."""
    steps, rest = [], 0
    for figure in str(a):
        current = rest * 10 + int(figure)
        times = current // b
        rest = current - times * b
        if times or steps:
            steps.append(f"{current} / {b} is {times}, {times} × {b} = {times * b}, rest {rest}")
    return (
        "; ".join(steps or [f"{a} / {b} is 0, rest {a}"])
        + f". {a} / {b} = {a // b}{f' with rest {rest}' if rest else ''}."
    )


def working(a: int, operator: str, b: int) -> str:
    """Step-by-step working of any operation of the four."""
    if operator == "*":
        big, little = max(a, b), min(a, b)
        return multiply_steps(big, little)
    if operator == "/":
        return divide_steps(a, b)
    if operator == "-" and a < b:
        return f"{b} is larger than {a}, so the result is negative. {subtract_steps(b, a)} So {a} - {b} = {a - b}."
    return subtract_steps(a, b) if operator == "-" else add_steps(a, b)


def running_sum(row: list[int]) -> str:
    """The additions of a list one by one."""
    steps, total = [], row[0]
    for value in row[1:]:
        steps.append(f"{total} + {value} = {total + value}")
        total += value
    return "; ".join(steps) + "."
