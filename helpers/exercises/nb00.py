"""Exercises of notebook 00: the arithmetic of a launch."""

from . import Wrong, call, exercise


def _blocks(n, threads):
    return (n + threads - 1) // threads


def _who(i, threads):
    return i // threads, i % threads


@exercise(
    "00-blocks", "How many blocks?",
    hints=("256 elements need 1 block of 256 threads, 257 need 2.",
           "n // threads rounds down and loses the last, partly filled block.",
           "Rounding up with integers: add threads - 1 before dividing."),
    solution=_blocks,
    wrong={"rounds down": (lambda n, t: n // t, "partly filled"),
           "always one more": (lambda n, t: n // t + 1, "exactly"),
           "a float": (lambda n, t: -(-n / t), "integer"),
           "at least one": (lambda n, t: max(1, _blocks(n, t)), "no elements")},
)
def _judge_blocks(answer):
    for n, threads in ((1000, 256), (1024, 256), (1, 32), (257, 256), (256, 256), (0, 128), (2**31, 1024), (999, 1)):
        got, want = call(answer, n, threads), _blocks(n, threads)
        if isinstance(got, bool) or not isinstance(got, int):
            raise Wrong(f"a number of blocks is an integer; for n = {n} you return {got!r}")
        if n == 0 and got != 0:
            raise Wrong("no elements need no blocks: for n = 0 return 0")
        if got < want:
            raise Wrong(f"{got} blocks of {threads} are {got * threads:,} threads, too few for {n:,} elements: "
                        "count the partly filled block")
        if got > want:
            raise Wrong(f"{n:,} elements fill {want:,} blocks of {threads} exactly or nearly; you return {got:,}")


@exercise(
    "00-who", "Which thread?",
    hints=("The kernel computes i = block * threads + thread. Undo it.",
           "The block is how often `threads` fits into i.",
           "The thread is what is left over."),
    solution=_who,
    wrong={"swapped": (lambda i, t: (i % t, i // t), "the other way round"),
           "counts from one": (lambda i, t: (i // t + 1, i % t), "count from 0"),
           "global number": (lambda i, t: (i // t, i), "inside its block")},
)
def _judge_who(answer):
    for i, threads in ((700, 256), (0, 32), (255, 256), (256, 256), (12345, 128)):
        got, want = call(answer, i, threads), _who(i, threads)
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong("return a pair: (block, thread)")
        if got == want:
            continue
        if got == want[::-1]:
            raise Wrong("you have them the other way round: first the block, then the thread")
        if got[1] >= threads:
            raise Wrong(f"thread {got[1]} does not exist: threadIdx.x counts inside its block, from 0 to {threads - 1}")
        if got[0] == want[0] + 1 or got[1] == want[1] + 1:
            raise Wrong("blocks and threads count from 0")
        raise Wrong(f"block {got[0]}, thread {got[1]} handles element {got[0] * threads + got[1]}, not {i}")
