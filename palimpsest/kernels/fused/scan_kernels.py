"""The memory scan in Triton: the chunked form (kernels/chunked.py), one program for some columns of one head's page.

    prepare     all chunks side by side: T = (I + A)⁻¹, how much of each note each read sees, and what is kept
    carry       chunk after chunk: notes = T (write · value − erase · recall), the reads, the page
    carry_back  the same, last chunk first: the gradient of the page after each chunk, and of what T was given
    gradients   all chunks side by side: everything else, from the pages before and their gradients after each chunk

Where keys are counted, a page has one column more than there are values, PAGE = VALUES + 1, in which every key writes a
one. Those ones are not in memory either, and what is read of that column, the mass, is written by itself.

Raw queries and keys are read from memory; their features exist on chip alone. On chip a page is turned, columns first:
page and notes are then the left side of every product they are in, which on tensor cores is where results already
lie, so that nothing between two chunks passes through shared memory. All tiles have fewer than 64 rows: from there
on Triton (3.4 to 3.7.0) would use Hopper's warp group products, and lose track of their addresses in loops like these.
"""

# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from .chunk import between, column_of, inverse, kept_since, overlap_by_feature, row_of
from .features import features, raw_gradient
from .products import product

LITTLE = tl.constexpr(1 / 64)


@triton.jit
def first_of(pointer, row, head, token, s_b, s_t, s_h):
    """Where the numbers of a token begin. All else is an offset of 32 bits: pointers cost twice the registers."""
    return pointer + row.to(tl.int64) * s_b + head * s_h + token.to(tl.int64) * s_t


@triton.jit
def look(
    base, step, inside, matrix,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The features of a chunk's tokens, rounded once to the type of the raw numbers."""
    MAP: tl.constexpr = LOOK[0]
    SCALE: tl.constexpr = LOOK[1]
    NU: tl.constexpr = LOOK[2]
    FLOOR: tl.constexpr = LOOK[3]
    EPSILON: tl.constexpr = LOOK[4]
    FACTOR: tl.constexpr = LOOK[5]
    EXACT: tl.constexpr = LOOK[6]
    place = tl.arange(0, CHUNK)
    if MAP == "Identity" and SCALE == "Unscaled":
        return tile_of(base, step, inside, FEATURES, SIZE, CHUNK)
    else:
        found = features(
            base + place * step, inside, 1, matrix,
            MAP, SCALE, WIDTH, FEATURES, SIZE, NU, FLOOR, EPSILON, FACTOR, EXACT,
        )  # fmt: skip
        return found.to(base.dtype.element_ty)


@triton.jit
def back(
    gradient, base, step, inside, matrix,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The gradient of raw numbers from that of their features."""
    MAP: tl.constexpr = LOOK[0]
    SCALE: tl.constexpr = LOOK[1]
    NU: tl.constexpr = LOOK[2]
    FLOOR: tl.constexpr = LOOK[3]
    EPSILON: tl.constexpr = LOOK[4]
    FACTOR: tl.constexpr = LOOK[5]
    EXACT: tl.constexpr = LOOK[6]
    return raw_gradient(
        gradient, base + tl.arange(0, CHUNK) * step, inside, 1, matrix,
        MAP, SCALE, WIDTH, FEATURES, SIZE, NU, FLOOR, EPSILON, FACTOR, EXACT, WIDE,
    )  # fmt: skip


@triton.jit
def tile_of(base, step, inside, COUNT: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """[CHUNK, SIZE] numbers, `step` between tokens."""
    place, column = tl.arange(0, CHUNK), tl.arange(0, SIZE)
    there = inside[:, None] & (column < COUNT)[None, :]
    return tl.load(base + (place[:, None] * step + column[None, :]), mask=there, other=0.0)


@triton.jit
def gate_of(base, step, inside, LIMIT: tl.constexpr, CHUNK: tl.constexpr):
    """One number a token; with a limit it comes as a logit."""
    found = tl.load(base + tl.arange(0, CHUNK) * step, mask=inside, other=0.0).to(tl.float32)
    if LIMIT > 0:
        found = LIMIT * tl.sigmoid(found)
    return found


@triton.jit
def slope_of(gate, LIMIT: tl.constexpr):
    """Of a gate by its logit."""
    if LIMIT > 0:
        return gate * (1.0 - gate / LIMIT)
    else:
        return 1.0


@triton.jit
def logs_of(base, step, inside, KEEP: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Sums of log keep since the chunk's start, [CHUNK] or [CHUNK, SIZE], how often the page was wiped since, where.

    In float64: a difference of two sums must not lose what a great forgetting before both of them left of it.
    """
    if KEEP == "features":
        logs = tile_of(base, step, inside, FEATURES, SIZE, CHUNK).to(tl.float32)
    else:
        logs = tl.load(base + tl.arange(0, CHUNK) * step, mask=inside, other=0.0).to(tl.float32)
    wiped = logs == float("-inf")
    sums = tl.cumsum(tl.where(wiped, 0.0, logs).to(tl.float64), axis=0)
    return sums, tl.cumsum(wiped.to(tl.int32), axis=0), wiped


@triton.jit
def since_start(logs, documents):
    return tl.where(documents == 0, tl.exp(logs.to(tl.float32)), 0.0)


@triton.jit
def last_of(logs, documents, CHUNK: tl.constexpr):
    """The sums and counts after the chunk."""
    place = tl.arange(0, CHUNK)
    if len(logs.shape) == 1:
        here = place == CHUNK - 1
    else:
        here = (place == CHUNK - 1)[:, None]
    return tl.sum(tl.where(here, logs, 0.0), axis=0), tl.sum(tl.where(here, documents, 0), axis=0)


@triton.jit
def until_end(logs, documents, last_log, last_document):
    return tl.where(documents == last_document, tl.exp((last_log - logs).to(tl.float32)), 0.0)


@triton.jit
def by_feature(base, step, inside, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """What is kept of each feature since the chunk's start, until its end, and from start to end."""
    logs, documents, _ = logs_of(base, step, inside, "features", FEATURES, SIZE, CHUNK)
    last_log, last_document = last_of(logs, documents, CHUNK)
    since = since_start(logs, documents)
    return since, until_end(logs, documents, last_log, last_document), since_start(last_log, last_document)


@triton.jit
def whole_of(kept, KEEP: tl.constexpr, CHUNK: tl.constexpr):
    """What is kept from start to end."""
    if KEEP == "heads":
        return tl.sum(tl.where(tl.arange(0, CHUNK) == CHUNK - 1, kept, 0.0), axis=0)
    else:
        return 1.0


@triton.jit
def dimmed(x, kept, KEEP: tl.constexpr):
    """Rows [CHUNK, …] multiplied by what is kept of each, [CHUNK] or, for features, [CHUNK, SIZE]."""
    if KEEP == "heads":
        return x * kept[:, None]
    elif KEEP == "features":
        return x * kept
    else:
        return x


@triton.jit
def seen_of(q, k, logs, documents, CHUNK: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr):
    """kept_ij (q_i · k_j) for j ≤ i: how much of note j read i sees."""
    place = tl.arange(0, CHUNK)
    if KEEP == "features":
        return overlap_by_feature(q.to(tl.float32), k.to(tl.float32), logs, documents, CHUNK)
    else:
        found = product(q, tl.trans(k), PRECISION)
        if KEEP == "heads":
            return found * between(logs, documents, CHUNK)
        else:
            return tl.where(place[:, None] >= place[None, :], found, 0.0)


@triton.jit
def asked_of_page(page, x, kept, KEEP: tl.constexpr, PRECISION: tl.constexpr):
    """What queries or keys find on the page the chunk began with, [COLUMNS, CHUNK]."""
    if KEEP == "features":
        return product(page, tl.trans(x * kept), PRECISION)
    elif KEEP == "heads":
        return product(page, tl.trans(x), PRECISION) * kept[None, :]
    else:
        return product(page, tl.trans(x), PRECISION)


@triton.jit
def written(notes, x, kept, KEEP: tl.constexpr, PRECISION: tl.constexpr):
    """What notes [COLUMNS, CHUNK] under the keys x leave on the page."""
    if KEEP == "features":
        return product(notes, x * kept, PRECISION)
    elif KEEP == "heads":
        return product(notes * kept[None, :], x, PRECISION)
    else:
        return product(notes, x, PRECISION)


@triton.jit
def faded(page, total, KEEP: tl.constexpr):
    if KEEP == "features":
        return page * total[None, :]
    else:
        return page * total


@triton.jit
def overlap_with(vector, x, kept, KEEP: tl.constexpr):
    """Of each row of x with a vector [SIZE] of the page, [CHUNK]."""
    if KEEP == "features":
        return tl.sum(x * kept * vector[None, :], axis=1)
    elif KEEP == "heads":
        return tl.sum(x.to(tl.float32) * vector[None, :], axis=1) * kept
    else:
        return tl.sum(x.to(tl.float32) * vector[None, :], axis=1)


@triton.jit
def outer(weights, vector, kept, KEEP: tl.constexpr):
    """What a vector [SIZE] of the page adds to rows of these weights, [CHUNK, SIZE]."""
    if KEEP == "heads":
        return (weights * kept)[:, None] * vector[None, :]
    else:
        return dimmed(weights[:, None] * vector[None, :], kept, KEEP)


@triton.jit
def store_tile(tiles, index, tile, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """A [CHUNK, CHUNK] for all programs of a head; where products are split, what bfloat16 keeps and what it loses."""
    place = tl.arange(0, CHUNK)
    offsets = place[:, None] * CHUNK + place[None, :]
    if PRECISION == "split":
        base = tiles + index.to(tl.int64) * (2 * CHUNK * CHUNK)
        high = tile.to(tl.bfloat16)
        tl.store(base + offsets, high)
        tl.store(base + CHUNK * CHUNK + offsets, (tile - high.to(tl.float32)).to(tl.bfloat16))
    else:
        tl.store(tiles + index.to(tl.int64) * (CHUNK * CHUNK) + offsets, tile)


@triton.jit
def load_tile(tiles, index, TURNED: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """The same, without what bfloat16 lost."""
    place = tl.arange(0, CHUNK)
    if TURNED:
        offsets = place[None, :] * CHUNK + place[:, None]
    else:
        offsets = place[:, None] * CHUNK + place[None, :]
    if PRECISION == "split":
        return tl.load(tiles + index.to(tl.int64) * (2 * CHUNK * CHUNK) + offsets)
    else:
        return tl.load(tiles + index.to(tl.int64) * (CHUNK * CHUNK) + offsets)


@triton.jit
def times_tile(left, tiles, index, TURNED: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """[COLUMNS, CHUNK] times a stored tile or its transpose."""
    tile = load_tile(tiles, index, TURNED, CHUNK, PRECISION)
    found = product(left, tile, PRECISION)
    if PRECISION == "split":
        lost = load_tile(tiles + CHUNK * CHUNK, index, TURNED, CHUNK, PRECISION)
        found = tl.dot(left.to(tl.bfloat16), lost, acc=found)
    return found


@triton.jit
def prepare_kernel(
    queries, keys, log_keep, erase, matrix, solved, seen_out, between_out, kept_out, remaining_out,
    q_b, q_t, q_h, k_b, k_t, k_h, keep_b, keep_t, keep_h, erase_b, erase_t, erase_h,
    length, heads, chunks,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, LIMIT: tl.constexpr, EXACT: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    chunk, head, row = program % chunks, (program // chunks) % heads, program // (chunks * heads)
    place, first = tl.arange(0, CHUNK), chunk * CHUNK
    inside = place < length - first
    q = look(
        first_of(queries, row, head, first, q_b, q_t, q_h), q_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK
    )
    k = look(first_of(keys, row, head, first, k_b, k_t, k_h), k_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)
    logs, documents = place, place
    if KEEP != "all":
        logs, documents, _ = logs_of(
            first_of(log_keep, row, head, first, keep_b, keep_t, keep_h), keep_t, inside, KEEP, FEATURES, SIZE, CHUNK
        )
    if KEEP == "heads":
        last_log, last_document = last_of(logs, documents, CHUNK)
        at = program.to(tl.int64) * CHUNK + place
        tl.store(between_out + at[:, None] * CHUNK + place[None, :], between(logs, documents, CHUNK))
        tl.store(kept_out + at, since_start(logs, documents))
        tl.store(remaining_out + at, until_end(logs, documents, last_log, last_document))
    store_tile(seen_out, program, seen_of(q, k, logs, documents, CHUNK, KEEP, FINE), CHUNK, FINE)
    if ERASE:
        beta = gate_of(first_of(erase, row, head, first, erase_b, erase_t, erase_h), erase_t, inside, LIMIT, CHUNK)
        recalled = seen_of(k, k, logs, documents, CHUNK, KEEP, FINE)
        system = tl.where(place[:, None] > place[None, :], beta[:, None] * recalled, 0.0)
        store_tile(solved, program, inverse(system, CHUNK, EXACT), CHUNK, FINE)


@triton.jit
def tokens_at(
    chunk, values, row, head, slice, length, v_b, v_t, v_h, VALUES: tl.constexpr, COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """[COLUMNS, CHUNK] of values or of their reads' gradient. Asked for a chunk ahead, as are the gates."""
    place, column = tl.arange(0, CHUNK), tl.arange(0, COLUMNS)
    here = (place < length - chunk * CHUNK)[:, None] & (column < VALUES - slice * COLUMNS)[None, :]
    base = first_of(values, row, head, chunk * CHUNK, v_b, v_t, v_h) + slice * COLUMNS
    return tl.trans(tl.load(base + (place[:, None] * v_t + column[None, :]), mask=here, other=0.0))


@triton.jit
def with_count(tile, last, slice, VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr):
    """[COLUMNS, CHUNK] with these numbers in the column in which keys are counted, if there is one and it is here."""
    if PAGE > VALUES:
        counting = (tl.arange(0, COLUMNS) == VALUES - slice * COLUMNS)[:, None]
        return tl.where(counting, last, tile.to(tl.float32))
    else:
        return tile


@triton.jit
def gate_at(
    chunk, gate, row, head, length, s_b, s_t, s_h, PRESENT: tl.constexpr, LIMIT: tl.constexpr, CHUNK: tl.constexpr
):
    place = tl.arange(0, CHUNK)
    if PRESENT:
        base = first_of(gate, row, head, chunk * CHUNK, s_b, s_t, s_h)
        return gate_of(base, s_t, place < length - chunk * CHUNK, LIMIT, CHUNK)
    else:
        return place


@triton.jit
def fade_at(index, fades, KEEP: tl.constexpr, CHUNK: tl.constexpr):
    """What `prepare` says is kept, of the chunk that is this one of all."""
    place = tl.arange(0, CHUNK)
    if KEEP == "heads":
        return tl.load(fades + index.to(tl.int64) * CHUNK + place)
    else:
        return place


@triton.jit
def carry_kernel(
    queries, keys, values, log_keep, erase, write, matrix, solved, seen_in, kept_in, remaining_in, start,
    reads, mass, notes_out, erased_out, pages, last,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    keep_b, keep_t, keep_h, erase_b, erase_t, erase_h, write_b, write_t, write_h,
    length, heads, chunks, parts, share,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, LIMIT: tl.constexpr,
    STARTED: tl.constexpr, READS: tl.constexpr, READY: tl.constexpr, SAVES: tl.constexpr,
    FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """`parts` pieces of `share` chunks each start from pages of their own, `start` [rows · heads, parts, k, v].

    Where nothing is read, columns beyond the page begin as columns of the identity and are written nothing: the
    page they end as is what the piece does to the page it is given. What backward needs is saved if asked for.
    """
    SLICES: tl.constexpr = (PAGE + COLUMNS - 1) // COLUMNS
    ALL: tl.constexpr = SLICES if READS else SLICES + (FEATURES + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    slice, piece, line = program % ALL, (program // ALL) % parts, program // (ALL * parts)
    row, head = line // heads, line % heads
    place, feature, column = tl.arange(0, CHUNK), tl.arange(0, SIZE), tl.arange(0, COLUMNS)
    left = VALUES - slice * COLUMNS
    on_page = feature[None, :] * PAGE + column[:, None]
    there = (feature[None, :] < FEATURES) & (column[:, None] < PAGE - slice * COLUMNS)
    page = tl.zeros((COLUMNS, SIZE), tl.float32)
    if STARTED:
        at = (line * parts + piece).to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS
        page += tl.load(start + at + on_page, mask=there, other=0.0)
    if not READS:
        page += tl.where(feature[None, :] == ((slice - SLICES) * COLUMNS + column)[:, None], 1.0, 0.0)
    v_next = tokens_at(piece * share, values, row, head, slice, length, v_b, v_t, v_h, VALUES, COLUMNS, CHUNK)
    into_next = gate_at(piece * share, write, row, head, length, write_b, write_t, write_h, WRITE, LIMIT, CHUNK)
    beta_next = gate_at(piece * share, erase, row, head, length, erase_b, erase_t, erase_h, ERASE, LIMIT, CHUNK)
    kept_next = fade_at(line * chunks + piece * share, kept_in, KEEP, CHUNK)
    remaining_next = fade_at(line * chunks + piece * share, remaining_in, KEEP, CHUNK)
    for step in range(tl.minimum(share, chunks - piece * share)):
        chunk = piece * share + step
        v, into, beta, kept, remaining = v_next, into_next, beta_next, kept_next, remaining_next
        v_next = tokens_at(chunk + 1, values, row, head, slice, length, v_b, v_t, v_h, VALUES, COLUMNS, CHUNK)
        into_next = gate_at(chunk + 1, write, row, head, length, write_b, write_t, write_h, WRITE, LIMIT, CHUNK)
        beta_next = gate_at(chunk + 1, erase, row, head, length, erase_b, erase_t, erase_h, ERASE, LIMIT, CHUNK)
        kept_next = fade_at(line * chunks + tl.minimum(chunk + 1, chunks - 1), kept_in, KEEP, CHUNK)
        remaining_next = fade_at(line * chunks + tl.minimum(chunk + 1, chunks - 1), remaining_in, KEEP, CHUNK)
        first, index = chunk * CHUNK, line * chunks + chunk
        inside = place < length - first
        here = inside[:, None] & (column[None, :] < left)
        k = look(
            first_of(keys, row, head, first, k_b, k_t, k_h), k_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK
        )
        token = ((row * length + first).to(tl.int64) * heads + head) * VALUES + slice * COLUMNS
        on_tokens = place[:, None] * (heads * VALUES) + column[None, :]
        if KEEP == "features":
            base = first_of(log_keep, row, head, first, keep_b, keep_t, keep_h)
            since, until, total = by_feature(base, keep_t, inside, FEATURES, SIZE, CHUNK)
        else:
            since, until, total = kept, remaining, whole_of(kept, KEEP, CHUNK)
        notes = with_count(v, 1.0, slice, VALUES, PAGE, COLUMNS).to(v.dtype)
        if WRITE:
            notes = notes.to(tl.float32) * into[None, :]
        if ERASE:
            given = notes.to(tl.float32)
            fresh = given - beta[None, :] * asked_of_page(page, k, since, KEEP, FINE)
            notes = times_tile(fresh, solved, index, True, CHUNK, FINE)
            notes = with_count(notes, 1.0, slice, VALUES, PAGE, COLUMNS)  # in full, as nothing of it is erased
            if SAVES:
                tl.store(notes_out + token + on_tokens, tl.trans(notes).to(notes_out.dtype.element_ty), mask=here)
                erased = tl.trans(given - notes).to(erased_out.dtype.element_ty)
                tl.store(erased_out + token + on_tokens, erased, mask=here)
        if SAVES:
            base = pages + index.to(tl.int64) * (FEATURES * PAGE) + slice * (COLUMNS * FEATURES)
            tl.store(
                base + (column[:, None] * FEATURES + feature[None, :]), page.to(pages.dtype.element_ty), mask=there
            )
        if READS:
            q = look(
                first_of(queries, row, head, first, q_b, q_t, q_h), q_t, inside, matrix,
                LOOK, WIDTH, FEATURES, SIZE, CHUNK,
            )  # fmt: skip
            if KEEP == "features":  # whose queries are rounded as well
                found = asked_of_page(page, q, since, KEEP, FINE)
            else:
                found = asked_of_page(page, q, since, KEEP, ROUGH)
            if READY:
                found += product(notes, load_tile(seen_in, index, True, CHUNK, FINE), FINE)
            else:
                found += product(notes, tl.trans(seen_of(q, k, place, place, CHUNK, KEEP, FINE)), ROUGH)
            tl.store(reads + token + on_tokens, tl.trans(found).to(reads.dtype.element_ty), mask=here)
            if PAGE > VALUES:
                base = mass + ((row * length + first).to(tl.int64) * heads + head)
                overlap = tl.sum(tl.where((column == left)[:, None], found, 0.0), axis=0)
                tl.store(base + place * heads, overlap, mask=inside & (slice == SLICES - 1))
        page = faded(page, total, KEEP) + written(notes, k, until, KEEP, FINE)
    if READS:
        if piece == parts - 1:
            tl.store(last + line.to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS + on_page, page, mask=there)
    else:
        WIDER: tl.constexpr = PAGE + FEATURES
        turned = slice >= SLICES
        begin = tl.where(turned, PAGE + (slice - SLICES) * COLUMNS, slice * COLUMNS)
        end = tl.where(turned, WIDER, PAGE)
        base = last + (line * parts + piece).to(tl.int64) * (FEATURES * WIDER) + begin
        there = (feature[None, :] < FEATURES) & (begin + column < end)[:, None]
        tl.store(base + (feature[None, :] * WIDER + column[:, None]), page, mask=there)


@triton.jit
def carry_back_kernel(
    queries, keys, log_keep, erase, matrix, solved, seen_in, kept_in, remaining_in,
    of_reads, of_mass, of_last, of_fresh, of_pages, of_start,
    q_b, q_t, q_h, k_b, k_t, k_h, keep_b, keep_t, keep_h, erase_b, erase_t, erase_h, r_b, r_t, r_h,
    length, heads, chunks, parts, share,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, LIMIT: tl.constexpr,
    ENDED: tl.constexpr, SAVES: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """`of_last` [rows · heads, parts, k, v] is where each piece begins, at its end; `of_start` is where it ends."""
    SLICES: tl.constexpr = (PAGE + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    slice, piece, line = program % SLICES, (program // SLICES) % parts, program // (SLICES * parts)
    row, head = line // heads, line % heads
    place, feature, column = tl.arange(0, CHUNK), tl.arange(0, SIZE), tl.arange(0, COLUMNS)
    left = VALUES - slice * COLUMNS
    on_page = feature[None, :] * PAGE + column[:, None]
    there = (feature[None, :] < FEATURES) & (column[:, None] < PAGE - slice * COLUMNS)
    at = (line * parts + piece).to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS
    page = tl.zeros((COLUMNS, SIZE), tl.float32)
    if ENDED:
        page += tl.load(of_last + at + on_page, mask=there, other=0.0)
    end = tl.minimum(piece * share + share, chunks)
    coming_next = tokens_at(end - 1, of_reads, row, head, slice, length, r_b, r_t, r_h, VALUES, COLUMNS, CHUNK)
    beta_next = gate_at(end - 1, erase, row, head, length, erase_b, erase_t, erase_h, ERASE, LIMIT, CHUNK)
    mass_next = gate_at(end - 1, of_mass, row, head, length, length * heads, heads, 1, PAGE > VALUES, 0, CHUNK)
    kept_next = fade_at(line * chunks + end - 1, kept_in, KEEP, CHUNK)
    remaining_next = fade_at(line * chunks + end - 1, remaining_in, KEEP, CHUNK)
    for step in range(end - piece * share):
        chunk = end - 1 - step
        ahead = tl.maximum(chunk - 1, 0)
        coming = with_count(coming_next, mass_next[None, :], slice, VALUES, PAGE, COLUMNS)
        beta, kept, remaining = beta_next, kept_next, remaining_next
        coming_next = tokens_at(ahead, of_reads, row, head, slice, length, r_b, r_t, r_h, VALUES, COLUMNS, CHUNK)
        beta_next = gate_at(ahead, erase, row, head, length, erase_b, erase_t, erase_h, ERASE, LIMIT, CHUNK)
        mass_next = gate_at(ahead, of_mass, row, head, length, length * heads, heads, 1, PAGE > VALUES, 0, CHUNK)
        kept_next = fade_at(line * chunks + ahead, kept_in, KEEP, CHUNK)
        remaining_next = fade_at(line * chunks + ahead, remaining_in, KEEP, CHUNK)
        first, index = chunk * CHUNK, line * chunks + chunk
        inside = place < length - first
        if SAVES:
            base = of_pages + index.to(tl.int64) * (FEATURES * PAGE) + slice * (COLUMNS * FEATURES)
            on_saved = column[:, None] * FEATURES + feature[None, :]
            tl.store(base + on_saved, page.to(of_pages.dtype.element_ty), mask=there)
        q = look(
            first_of(queries, row, head, first, q_b, q_t, q_h), q_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK
        )
        if KEEP == "features":
            base = first_of(log_keep, row, head, first, keep_b, keep_t, keep_h)
            since, until, total = by_feature(base, keep_t, inside, FEATURES, SIZE, CHUNK)
        else:
            since, until, total = kept, remaining, whole_of(kept, KEEP, CHUNK)
        added = written(coming, q, since, KEEP, FINE)
        if ERASE:
            k = look(
                first_of(keys, row, head, first, k_b, k_t, k_h), k_t, inside, matrix,
                LOOK, WIDTH, FEATURES, SIZE, CHUNK,
            )  # fmt: skip
            of_notes = times_tile(coming, seen_in, index, False, CHUNK, FINE)
            of_notes += asked_of_page(page, k, until, KEEP, FINE)
            fresh = times_tile(of_notes, solved, index, False, CHUNK, FINE)
            fresh = with_count(fresh, 0.0, slice, VALUES, PAGE, COLUMNS)
            if SAVES:
                token = ((row * length + first).to(tl.int64) * heads + head) * VALUES + slice * COLUMNS
                on_tokens = place[:, None] * (heads * VALUES) + column[None, :]
                here = inside[:, None] & (column[None, :] < left)
                tl.store(of_fresh + token + on_tokens, tl.trans(fresh).to(of_fresh.dtype.element_ty), mask=here)
            added -= written(fresh * beta[None, :], k, since, KEEP, FINE)
        page = faded(page, total, KEEP) + added
    tl.store(of_start + at + on_page, page, mask=there)


@triton.jit
def gradients_kernel(
    queries, keys, values, log_keep, erase, write, matrix, seen_in, between_in, kept_in, remaining_in,
    notes_in, erased_in, pages, of_reads, of_mass, of_fresh, of_pages,
    of_queries, of_keys, of_values, of_log_keep, of_erase, of_write,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    keep_b, keep_t, keep_h, erase_b, erase_t, erase_h, write_b, write_t, write_h, r_b, r_t, r_h,
    length, heads, chunks,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, SHARED: tl.constexpr, LIMIT: tl.constexpr,
    READY: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """Gradients are written as contiguous tensors of the shape of what they are of."""
    program = tl.program_id(0)
    chunk, head, row = program % chunks, (program // chunks) % heads, program // (chunks * heads)
    place, feature, first = tl.arange(0, CHUNK), tl.arange(0, SIZE), chunk * CHUNK
    inside = place < length - first
    token = (row * length + first).to(tl.int64) * heads + head
    q_base = first_of(queries, row, head, first, q_b, q_t, q_h)
    k_base = first_of(keys, row, head, first, k_b, k_t, k_h)
    v_base = first_of(values, row, head, first, v_b, v_t, v_h)
    r_base = first_of(of_reads, row, head, first, r_b, r_t, r_h)
    page_base = program.to(tl.int64) * (FEATURES * PAGE)
    q = look(q_base, q_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)
    k = look(k_base, k_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)
    kept, remaining, total = place, place, 1.0
    if KEEP == "features":
        base = first_of(log_keep, row, head, first, keep_b, keep_t, keep_h)
        kept, remaining, total = by_feature(base, keep_t, inside, FEATURES, SIZE, CHUNK)
        logs, documents, wiped = logs_of(base, keep_t, inside, KEEP, FEATURES, SIZE, CHUNK)
    elif KEEP == "heads":
        kept = fade_at(program, kept_in, KEEP, CHUNK)
        remaining = fade_at(program, remaining_in, KEEP, CHUNK)
        total = whole_of(kept, KEEP, CHUNK)
    if WRITE:
        base = first_of(write, row, head, first, write_b, write_t, write_h)
        into = gate_of(base, write_t, inside, LIMIT, CHUNK)
    if ERASE:
        base = first_of(erase, row, head, first, erase_b, erase_t, erase_h)
        beta = gate_of(base, erase_t, inside, LIMIT, CHUNK)
        of_system = tl.zeros((CHUNK, CHUNK), tl.float32)
        of_beta = tl.zeros((CHUNK,), tl.float32)  # from what was erased, β times the recall
        by_recalling = tl.zeros((CHUNK,), tl.float32)  # from the recall, put together again
    elif READY:
        seen_back = load_tile(seen_in, program, True, CHUNK, FINE)
    else:
        seen_back = tl.trans(seen_of(q, k, place, place, CHUNK, KEEP, FINE))
    of_q = tl.zeros((CHUNK, SIZE), tl.float32)
    of_k = tl.zeros((CHUNK, SIZE), tl.float32)
    of_seen = tl.zeros((CHUNK, CHUNK), tl.float32)
    of_into = tl.zeros((CHUNK,), tl.float32)
    if KEEP == "features":
        by_later = tl.zeros((CHUNK, SIZE), tl.float32)  # what is kept from the start until each token
        by_earlier = tl.zeros((CHUNK, SIZE), tl.float32)  # … from each token until the end
        by_whole = tl.zeros((SIZE,), tl.float32)  # … from start to end
    elif KEEP == "heads":
        by_later = tl.zeros((CHUNK,), tl.float32)
        by_earlier = tl.zeros((CHUNK,), tl.float32)
        by_whole = 0.0

    for start in range(0, VALUES, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        here = inside[:, None] & (column < VALUES)[None, :]
        there = (feature[None, :] < FEATURES) & (column < VALUES)[:, None]
        on_page = column[:, None] * FEATURES + feature[None, :]
        on_tokens = place[:, None] * (heads * VALUES) + column[None, :]
        coming = tl.load(r_base + (place[:, None] * r_t + column[None, :]), mask=here, other=0.0)
        page = tl.load(pages + page_base + on_page, mask=there, other=0.0)
        of_page = tl.load(of_pages + page_base + on_page, mask=there, other=0.0)
        if ERASE:
            notes = tl.load(notes_in + token * VALUES + on_tokens, mask=here, other=0.0)
            fresh = tl.load(of_fresh + token * VALUES + on_tokens, mask=here, other=0.0)
            erased = tl.load(erased_in + token * VALUES + on_tokens, mask=here, other=0.0)
            of_beta -= tl.sum(fresh.to(tl.float32) * erased.to(tl.float32), axis=1)
            of_system -= product(fresh, tl.trans(notes), ROUGH)
            by_erasing = dimmed(product(fresh, page, ROUGH), kept, KEEP)
            by_recalling -= tl.sum(by_erasing * k.to(tl.float32), axis=1)
            by_erasing *= beta[:, None]
            of_k -= by_erasing
            fresh = fresh.to(tl.float32)
            if WRITE:
                v = tl.load(v_base + (place[:, None] * v_t + column[None, :]), mask=here, other=0.0)
        else:
            v = tl.load(v_base + (place[:, None] * v_t + column[None, :]), mask=here, other=0.0)
            notes = v
            if WRITE:
                notes = notes.to(tl.float32) * into[:, None]
            fresh = product(seen_back, coming, ROUGH)
            if KEEP == "features":
                fresh += product(k * remaining, tl.trans(of_page), ROUGH)
            else:
                fresh += dimmed(product(k, tl.trans(of_page), ROUGH), remaining, KEEP)
        of_seen += product(coming, tl.trans(notes), ROUGH)
        by_asking = dimmed(product(coming, page, ROUGH), kept, KEEP)
        by_writing = dimmed(product(notes, of_page, ROUGH), remaining, KEEP)
        of_q += by_asking
        of_k += by_writing
        if KEEP == "features":
            by_later += by_asking * q.to(tl.float32)
            if ERASE:
                by_later -= by_erasing * k.to(tl.float32)
            by_earlier += by_writing * k.to(tl.float32)
            by_whole += total * tl.sum(page.to(tl.float32) * of_page.to(tl.float32), axis=0)
        elif KEEP == "heads":
            by_later += tl.sum(by_asking * q.to(tl.float32), axis=1)
            if ERASE:
                by_later -= tl.sum(by_erasing * k.to(tl.float32), axis=1)
            by_earlier += tl.sum(by_writing * k.to(tl.float32), axis=1)
            by_whole += total * tl.sum(page.to(tl.float32) * of_page.to(tl.float32))
        if WRITE:
            of_into += tl.sum(fresh * v.to(tl.float32), axis=1)
            fresh *= into[:, None]
        tl.store(of_values + token * VALUES + on_tokens, fresh.to(of_values.dtype.element_ty), mask=here)

    if PAGE > VALUES:  # the same for the column in which keys are counted
        at = page_base + VALUES * FEATURES + feature
        key_sum = tl.load(pages + at, mask=feature < FEATURES, other=0.0).to(tl.float32)
        of_sum = tl.load(of_pages + at, mask=feature < FEATURES, other=0.0).to(tl.float32)
        asked = gate_of(of_mass + token, heads, inside, 0, CHUNK)
        once = tl.full((CHUNK,), 1.0, tl.float32)
        if WRITE and not ERASE:
            once = into
            of_into += tl.sum(seen_back.to(tl.float32) * asked[None, :], axis=1)
            of_into += overlap_with(of_sum, k, remaining, KEEP)
        of_seen += asked[:, None] * once[None, :]
        of_q += outer(asked, key_sum, kept, KEEP)
        of_k += outer(once, of_sum, remaining, KEEP)
        if KEEP == "features":
            by_later += asked[:, None] * key_sum[None, :] * kept * q.to(tl.float32)
            by_earlier += once[:, None] * of_sum[None, :] * remaining * k.to(tl.float32)
            by_whole += total * key_sum * of_sum
        elif KEEP == "heads":
            by_later += asked * overlap_with(key_sum, q, kept, KEEP)
            by_earlier += once * overlap_with(of_sum, k, remaining, KEEP)
            by_whole += total * tl.sum(key_sum * of_sum)

    causal = place[:, None] >= place[None, :]
    earlier = place[:, None] > place[None, :]
    of_seen = tl.where(causal, of_seen, 0.0)
    if ERASE:
        of_system = tl.where(earlier, of_system, 0.0)
    if KEEP == "features":
        by_pairs = tl.zeros((CHUNK, SIZE), tl.float32)
        asking, writing = q.to(tl.float32), k.to(tl.float32)
        for j in range(CHUNK):
            key = row_of(writing, j, CHUNK)[None, :]
            since = kept_since(j, logs, documents, CHUNK)
            by_query = column_of(of_seen, j, CHUNK)[:, None] * since
            of_q += by_query * key
            pairs = by_query * asking
            if ERASE:
                by_key = column_of(of_system, j, CHUNK)[:, None] * since
                by_recalling += tl.sum(by_key * writing * key, axis=1)
                by_key *= beta[:, None]
                of_k += by_key * key
                pairs += by_key * writing
            of_k += tl.where(place[:, None] == j, tl.sum(pairs, axis=0)[None, :], 0.0)
            later = tl.where(place[:, None] > j, pairs * key, 0.0)
            by_pairs += tl.where(place[:, None] > j, tl.cumsum(later, axis=0, reverse=True), 0.0)
    else:
        if KEEP == "heads":
            at = program.to(tl.int64) * (CHUNK * CHUNK)
            since = tl.load(between_in + at + (place[:, None] * CHUNK + place[None, :]))
            of_seen *= since
            pairs = of_seen * product(q, tl.trans(k), FINE)
        of_q += product(of_seen, k, ROUGH)
        of_k += product(tl.trans(of_seen), q, ROUGH)
        if ERASE:
            if KEEP == "heads":
                of_system *= since
            of_overlaps = of_system * product(k, tl.trans(k), FINE)
            by_recalling += tl.sum(of_overlaps, axis=1)
            of_system *= beta[:, None]
            of_k += product(of_system, k, ROUGH) + product(tl.trans(of_system), k, ROUGH)
            if KEEP == "heads":
                pairs += beta[:, None] * of_overlaps
        if KEEP == "heads":  # of all pairs around a token, those that have it between them
            pairs = tl.where(earlier, pairs, 0.0)
            by_later += tl.sum(pairs, axis=1) - tl.sum(pairs, axis=0)

    wide = tl.arange(0, WIDE)
    on_raw = inside[:, None] & (wide < WIDTH)[None, :]
    offsets = place[:, None] * (heads * WIDTH) + wide[None, :]
    found = back(of_q, q_base, q_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, CHUNK)
    tl.store(of_queries + token * WIDTH + offsets, found.to(of_queries.dtype.element_ty), mask=on_raw)
    found = back(of_k, k_base, k_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, CHUNK)
    tl.store(of_keys + token * WIDTH + offsets, found.to(of_keys.dtype.element_ty), mask=on_raw)
    if ERASE:
        if (
            FINE == "split"
        ):  # what was erased is finer than the rounded recall, but not where next to nothing was erased
            of_beta = tl.where(tl.abs(beta) < LITTLE, by_recalling, of_beta / tl.where(beta == 0, 1.0, beta))
        else:
            of_beta = by_recalling
        of_beta *= slope_of(beta, LIMIT)
    if WRITE:
        of_into *= slope_of(into, LIMIT)
        if SHARED:
            of_beta += of_into
        else:
            tl.store(of_write + token + place * heads, of_into.to(of_write.dtype.element_ty), mask=inside)
    if ERASE:
        tl.store(of_erase + token + place * heads, of_beta.to(of_erase.dtype.element_ty), mask=inside)
    if KEEP == "features":
        found = by_pairs + tl.cumsum(by_later, axis=0, reverse=True) + before(by_earlier) + by_whole[None, :]
        found = tl.where(wiped, 0.0, found)
        offsets = place[:, None] * (heads * FEATURES) + feature[None, :]
        there = inside[:, None] & (feature[None, :] < FEATURES)
        tl.store(of_log_keep + token * FEATURES + offsets, found.to(of_log_keep.dtype.element_ty), mask=there)
    elif KEEP == "heads":
        found = tl.cumsum(by_later, axis=0, reverse=True) + before(by_earlier) + by_whole
        base = first_of(log_keep, row, head, first, keep_b, keep_t, keep_h)
        kind = tl.load(base + place * keep_t, mask=inside, other=0.0).to(tl.float32)
        found = tl.where(kind == float("-inf"), 0.0, found)
        tl.store(of_log_keep + token + place * heads, found.to(of_log_keep.dtype.element_ty), mask=inside)


@triton.jit
def before(x):
    """The sum of all rows before each."""
    return tl.cumsum(x, axis=0) - x
