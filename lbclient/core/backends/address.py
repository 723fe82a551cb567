"""Addresses of several connections to one port, which are backends of their own.

The first has the address itself. The others have their number behind it, as the
address is what tells backends apart: `10.0.0.1:50051#2`.
"""


def another(address: str, number: int) -> str:
    """
    >>> another("10.0.0.1:50051", 1), another("10.0.0.1:50051", 2)
    ('10.0.0.1:50051', '10.0.0.1:50051#2')
    """
    return address if number == 1 else f"{address}#{number}"


def dialled(address: str) -> str:
    """What is dialled for it.

    >>> dialled("10.0.0.1:50051#2"), dialled("unix:/run/#1/s")
    ('10.0.0.1:50051', 'unix:/run/#1/s')
    """
    first, mark, number = address.rpartition("#")
    return first if mark and number.isdecimal() else address
