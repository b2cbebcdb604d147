"""SQL expressions with random values, and the constants of NURand (clause 2.1.6)."""

#: C of last names at the load and in the runs: 66 apart, as the clause wants it
C_LOAD = 157
C_RUN = 223
C_CUSTOMER = 259
C_ITEM = 7911


def integer(least, most):
    return "(%d + floor(random() * %d))::int" % (least, most - least + 1)


def text(least, most):
    """A text of that length."""
    digits = " || ".join(["md5(random()::text)"] * -(-most // 32))
    return "left(%s, %s)" % (digits, most if least == most else integer(least, most))


def letters(count):
    return "translate(left(md5(random()::text), %d), '0123456789', 'ghijklmnop')" % count


def nurand(a, least, most, c):
    return "((%s | %s) + %d) %% %d + %d" % (integer(0, a), integer(least, most), c,
                                            most - least + 1, least)


def a_of(count, a, full):
    """A of NURand for that many values: the clause's, or as large in proportion."""
    if count >= full:
        return a
    bits = max(1, (count * (a + 1) // full).bit_length() - 1)
    return (1 << bits) - 1
