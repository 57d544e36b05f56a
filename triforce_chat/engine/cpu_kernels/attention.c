/* Attention of few tokens over keys and values in fp32 or fp16, softmax included, and rotary position embeddings.
 *
 * The query heads that share a head of keys are rows of one matrix, so keys and values are read once. Keys are taken in
 * spans of a fixed length, whose results are joined in order: a row's result depends neither on the number of threads
 * nor on what is computed beside it. What all rows pay to each chunk of the keys is a by-product. Keys and values in fp16,
 * 8 or 4 bits become fp32 a few at a time, where they stay in the nearest cache, and everything is computed in fp32.
 */
#ifndef PATH_NAME

#include "vectors.h"

#include <math.h>
#include <stdlib.h>

#define SPAN 512     /* keys whose scores are kept at a time */
#define MOST_DIM 256 /* numbers of a key */
#define KEYS 8       /* keys that are multiplied at a time */
#define VALUES 64    /* values that all rows are weighted with while they are in the nearest cache */
#define ROWS 4       /* rows of weights that are multiplied at a time, */
#define PIECES 2     /* with vectors of a value */
#define GROUP 64     /* keys that share their scales; a multiple of KEYS and of VALUES */
#define LOWEST -3e38f

/* Quantized keys or values of one head, of 8 bits with a scale, or of 4 with a scale and the smallest number. */
typedef struct {
    const uint8_t *codes;   /* [tokens, dim]; of 4 bits [tokens / 2, dim], the even token's in the lower half */
    const uint16_t *scales; /* fp16: [tokens / GROUP, 1 or 2, dim], or [tokens, 1 or 2] */
    int64_t head;           /* scales from head to head */
} Codes;

/* Queries of one head of keys, and a span of its keys and values. */
typedef struct {
    const float *queries;               /* of the first of the heads that share the keys */
    int64_t head_stride, token_stride;  /* of queries */
    int64_t tokens, dim;
    float scale;
    const char *keys, *values;          /* of slot 0 */
    int64_t size;                       /* bytes of a number of theirs: 4, or 2 in fp16 */
    int64_t stride;                     /* from slot to slot */
    int64_t origin;                     /* slot of the span's first token, if there are no slots: */
    const int32_t *slots;               /* of the span's tokens; NULL: the origin and those that follow */
    Codes key_codes, value_codes;       /* of the first tokens of all, which are quantized: whole groups, */
    int64_t quantized, bits;            /* so many, of so many bits; the others begin in slot 0 */
    int64_t first, chunk;               /* token that the span begins with, and tokens of a chunk; 0: none is weighed */
    int64_t count;                      /* tokens in the span */
    int64_t seen;                       /* of which the first of the new tokens sees, the next one more, and so on */
    const uint8_t *visible;             /* or of a tree: all see as many, and here is */
    int64_t tail;                       /* for each token which of so many further ones, one byte each */
} Span;

/* Of all rows: the largest score, sums of weights, of weighted values and of each chunk's weights, and what a weight here
 * is worth among those of all spans. */
typedef struct {
    float *peak, *total, *mixed, *worth, *chunks; /* [rows], [rows], [rows, dim], [rows], [chunks, rows] */
} Partial;

INLINE int64_t slot_of(const Span *s, int64_t key) { return s->slots ? s->slots[key] : s->origin + key; }

/* Row r of a head is token r % tokens of the query head r / tokens. */
INLINE const float *query_of(const Span *s, int64_t row) {
    return s->queries + row / s->tokens * s->head_stride + row % s->tokens * s->token_stride;
}

INLINE int sees(const Span *s, int64_t token, int64_t key) {
    return s->visible ? s->visible[token * s->tail + key - s->seen] : s->seen + token > key;
}

#define PATH_NAME plain
#define TARGET
#define VECTOR PlainVector
#define LANES 16
#define UNROLL
#include "attention.c"

#if defined(__x86_64__)
#define PATH_NAME avx2
#define TARGET TARGET2
#define VECTOR __m256
#define LANES 8
#define UNROLL UNROLL_FULLY
#include "attention.c"

#define PATH_NAME avx512
#define TARGET TARGET5
#define VECTOR __m512
#define LANES 16
#define UNROLL UNROLL_FULLY
#include "attention.c"
#endif

/* ---- Called from Python ---- */

typedef struct {
    Span span; /* of the first head's first key */
    int path;
    int64_t heads, group, length;
    int64_t query_stride, kv_stride, slots_stride, codes_stride; /* from head of keys to head of keys */
    float *partial;
    float *out;
    float *mass; /* NULL: not wanted */
    int64_t mass_stride;
} Attention;

/* Numbers of a span's partial result: chunks may begin before it and end after it. */
static int64_t room_of(const Span *s, int64_t rows) {
    return rows * (s->dim + 2 + (s->chunk ? SPAN / s->chunk + 3 : 0));
}

static Partial partial_of(const Attention *a, int64_t rows, int64_t unit) {
    float *peak = a->partial + unit * room_of(&a->span, rows), *mixed = peak + 2 * rows;
    float *worth = mixed + rows * a->span.dim;
    return (Partial){peak, peak + rows, mixed, worth, worth + rows};
}

static void attend_span(const Attention *a, int64_t rows, int64_t unit, int64_t spans) {
    int64_t head = unit / spans, first = unit % spans * SPAN;
    Span s = a->span;
    s.queries += head * a->query_stride;
    s.keys += head * a->kv_stride * s.size;
    s.values += head * a->kv_stride * s.size;
    if (s.slots) s.slots += head * a->slots_stride + first;
    if (s.quantized) {
        s.key_codes.codes += head * a->codes_stride;
        s.value_codes.codes += head * a->codes_stride;
        s.key_codes.scales += head * s.key_codes.head;
        s.value_codes.scales += head * s.value_codes.head;
    }
    s.origin = first - s.quantized;
    s.first = first;
    s.count = a->length - first < SPAN ? a->length - first : SPAN;
    s.seen = (s.visible ? a->length - s.tail : a->length - s.tokens + 1) - first;
    Partial out = partial_of(a, rows, unit);
#if defined(__x86_64__)
    if (a->path != PLAIN) {
        /* For the last rows half of a wide vector would be empty; the sums are the same. */
        int64_t wide = a->path == AVX512 ? (rows + 7) / 16 * 16 : 0;
        span_avx512(&s, 0, wide < rows ? wide : rows, rows, out);
        span_avx2(&s, wide, rows, rows, out);
        return;
    }
#endif
    span_plain(&s, 0, rows, rows, out);
}

/* A row's result from those of its spans. */
static void join_spans(const Attention *a, int64_t rows, int64_t head, int64_t row, int64_t spans) {
    int64_t dim = a->span.dim, tokens = a->span.tokens, room = room_of(&a->span, rows);
    const float *peaks = a->partial + head * spans * room + row;
    float *out = a->out + (row % tokens * a->heads * a->group + head * a->group + row / tokens) * dim;
    float highest = LOWEST, total = 0;
    for (int64_t s = 0; s < spans; s++)
        if (peaks[s * room] > highest) highest = peaks[s * room];
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int64_t s = 0; s < spans; s++) {
        const float *peak = peaks + s * room, *mixed = peak - row + 2 * rows + row * dim;
        float weight = spans > 1 ? expf(*peak - highest) : 1;
        total += weight * peak[rows];
        for (int64_t d = 0; d < dim; d++) out[d] += weight * mixed[d];
    }
    for (int64_t d = 0; d < dim; d++) out[d] /= total;
    for (int64_t s = 0; s < spans && a->mass; s++)
        partial_of(a, rows, head * spans + s).worth[row] = expf(peaks[s * room] - highest) / total;
}

/* What all rows of a head pay to a chunk, by the weights of the spans that hold some of it. */
static float mass_of(const Attention *a, int64_t rows, int64_t head, int64_t chunk, int64_t spans) {
    int64_t first = chunk * a->span.chunk, end = first + a->span.chunk;
    float mass = 0;
    for (int64_t s = first / SPAN; s < spans && s * SPAN < end; s++) {
        Partial part = partial_of(a, rows, head * spans + s);
        /* Of 32 bits, as a division of 64 would take as long as all the rest. */
        const float *weights = part.chunks + (chunk - (uint32_t)(s * SPAN) / (uint32_t)a->span.chunk) * rows;
        for (int64_t row = 0; row < rows; row++) mass += part.worth[row] * weights[row];
    }
    return mass;
}

static void attend_share(void *data) {
    const Attention *a = data;
    int64_t rows = a->group * a->span.tokens, spans = (a->length + SPAN - 1) / SPAN, from, to;
    share_of(a->heads * spans, &from, &to);
    for (int64_t unit = from; unit < to; unit++) attend_span(a, rows, unit, spans);
    GOMP_barrier();
    share_of(a->heads * rows, &from, &to);
    for (int64_t at = from; at < to; at++) join_spans(a, rows, at / rows, at % rows, spans);
    if (!a->mass) return;
    GOMP_barrier();
    int64_t chunks = (a->length + a->span.chunk - 1) / a->span.chunk;
    for (int64_t head = 0; head < a->heads; head++) {
        share_of(chunks, &from, &to);
        for (int64_t c = from; c < to; c++) a->mass[head * a->mass_stride + c] += mass_of(a, rows, head, c, spans);
    }
}

/* Attention of the last `tokens` of `length` tokens: out [tokens, heads * group, dim].
 *
 * Causal unless `visible` [tokens, tail] says which of the last `tail` tokens each of them sees. Keys and values have
 * the same strides, in numbers of `size` bytes: 4 for fp32, 2 for fp16. `dim` is a multiple of 16, up to 256. The tokens
 * lie in the slots [heads, length] or, if these are NULL, in the first ones. To mass [heads, chunks], unless it is NULL,
 * is added what all queries pay to each `chunk` tokens. The first `quantized` tokens of `bits` bits come before those in
 * slots, which are not numbered then: whole groups, unless there are no others. */
void attend(int path, const float *queries, int64_t query_head, int64_t query_token, const void *keys,
            const void *values, int64_t size, int64_t kv_head, int64_t kv_token, const uint8_t *key_codes,
            const uint8_t *value_codes, const uint16_t *key_scales, const uint16_t *value_scales, int64_t codes_head,
            int64_t key_scales_head, int64_t value_scales_head, int64_t quantized, int64_t bits, const int32_t *slots,
            int64_t slots_head, int64_t heads, int64_t group, int64_t tokens, int64_t length, int64_t dim, float scale,
            const uint8_t *visible, int64_t tail, float *out, float *mass, int64_t mass_head, int64_t chunk,
            int threads) {
    int64_t spans = (length + SPAN - 1) / SPAN, rows = group * tokens;
    Span span = {queries, query_head, query_token, tokens, dim, scale, keys, values, size, kv_token, 0, slots,
                 {key_codes, key_scales, key_scales_head}, {value_codes, value_scales, value_scales_head}, quantized,
                 bits, 0, mass ? chunk : 0, 0, 0, visible, tail};
    float *partial = malloc((size_t)(heads * spans * room_of(&span, rows)) * sizeof *partial);
    Attention job = {span, path, heads, group, length, group * query_head, kv_head, slots_head, codes_head, partial, out,
                     mass, mass_head};
    GOMP_parallel(attend_share, &job, (unsigned)threads, 0);
    free(partial);
}

/* Heads of the dimension `dim`: those of `tokens` rows of `stride` numbers, and where a head's norm is given, normed. */
typedef struct {
    float *x;
    int64_t tokens, stride, query_heads, key_heads, dim;
    const float *query_norm, *key_norm;
    float eps;
    const float *cos, *sin; /* [tokens, dim] */
} Rotation;

static void rotate_head(float *x, int64_t dim, const float *cos, const float *sin) {
    int64_t half = dim / 2;
    for (int64_t d = 0; d < half; d++) {
        float low = x[d], high = x[half + d];
        x[d] = low * cos[d] - high * sin[d];
        x[half + d] = high * cos[half + d] + low * sin[half + d];
    }
}

static void norm_head(float *x, int64_t dim, const float *weight, float eps) {
    float squares = 0;
    for (int64_t d = 0; d < dim; d++) squares += x[d] * x[d];
    float factor = 1 / sqrtf(squares / (float)dim + eps);
    for (int64_t d = 0; d < dim; d++) x[d] *= factor * weight[d];
}

static void rotate_share(void *data) {
    const Rotation *r = data;
    int64_t heads = r->query_heads + r->key_heads, from, to;
    share_of(r->tokens * heads, &from, &to);
    for (int64_t at = from; at < to; at++) {
        int64_t token = at / heads, head = at % heads;
        float *x = r->x + token * r->stride + head * r->dim;
        const float *norm = head < r->query_heads ? r->query_norm : r->key_norm;
        if (norm) norm_head(x, r->dim, norm, r->eps);
        rotate_head(x, r->dim, r->cos + token * r->dim, r->sin + token * r->dim);
    }
}

/* Rotate, after their norms where there are any, the queries and keys x [tokens, stride] that begin each row. */
void rotate(float *x, int64_t tokens, int64_t stride, int64_t query_heads, int64_t key_heads, int64_t dim,
            const float *query_norm, const float *key_norm, float eps, const float *cos, const float *sin,
            int threads) {
    Rotation job = {x, tokens, stride, query_heads, key_heads, dim, query_norm, key_norm, eps, cos, sin};
    GOMP_parallel(rotate_share, &job, (unsigned)threads, 0);
}

#else /* a path's copy of what all of them share */

#define OF(name) JOIN(name, PATH_NAME)

/* e to the power of x, which is 0 or less: by Cephes' polynomial, with an error of two roundings. */
INLINE TARGET VECTOR OF(exponential)(VECTOR x) {
    const float magic = 0x1.8p23f + 127; /* a sum with it has the nearest integer plus 127 in its lowest bits */
    static const float terms[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                  5.0000001201e-1f};
    x = OF(larger)(x, OF(broadcast)(-87));
    VECTOR biased = OF(add_product)(x, OF(broadcast)(1.44269504f), OF(broadcast)(magic));
    VECTOR n = OF(add)(biased, OF(broadcast)(-magic));
    VECTOR rest = OF(add_product)(n, OF(broadcast)(-0.693359375f), x);
    rest = OF(add_product)(n, OF(broadcast)(2.12194440e-4f), rest);
    VECTOR sum = OF(broadcast)(1.9875691500e-4f);
    UNROLL for (int i = 0; i < 5; i++) sum = OF(add_product)(sum, rest, OF(broadcast)(terms[i]));
    sum = OF(add_product)(sum, OF(multiply)(rest, rest), OF(add)(rest, OF(broadcast)(1)));
    return OF(multiply)(sum, OF(low_bits_to_power)(biased));
}

/* Quantized keys (scales for each number) or values (for each token) of `bits` bits from a token on, in `room`. */
INLINE TARGET void OF(decode)(const Codes *c, int bits, int by_token, int64_t token, int64_t rows, int64_t dim,
                              float *room) {
    int numbers = bits == 8 ? 1 : 2;
    for (int64_t end = token + rows; token < end; token++, room += dim) {
        const uint8_t *codes = c->codes + (bits == 8 ? token : token / 2) * dim;
        const uint16_t *scales = c->scales + (by_token ? token : token / GROUP * dim) * numbers;
        float scale = by_token ? half_of(scales[0]) : 0, least = by_token && numbers == 2 ? half_of(scales[1]) : 0;
        for (int64_t d = 0; d < dim; d += LANES) {
            VECTOR code = bits == 8 ? OF(load_bytes)((const int8_t *)codes + d) : OF(load_nibbles)(codes + d, token & 1);
            VECTOR factor = by_token ? OF(broadcast)(scale) : OF(load_half)(scales + d);
            VECTOR low = by_token || numbers == 1 ? OF(broadcast)(least) : OF(load_half)(scales + dim + d);
            OF(store)(room + d, numbers == 1 ? OF(multiply)(code, factor) : OF(add_product)(code, factor, low));
        }
    }
}

/* The same with what is constant told to the compiler. */
INLINE TARGET void OF(decoded)(const Span *s, int by_token, int64_t first, int64_t rows, float *room) {
    int64_t token = s->first + first;
    if (by_token && s->bits == 8) OF(decode)(&s->value_codes, 8, 1, token, rows, s->dim, room);
    else if (by_token) OF(decode)(&s->value_codes, 4, 1, token, rows, s->dim, room);
    else if (s->bits == 8) OF(decode)(&s->key_codes, 8, 0, token, rows, s->dim, room);
    else OF(decode)(&s->key_codes, 4, 0, token, rows, s->dim, room);
}

/* `rows` keys, or values, from the span's `first` on in fp32, `*stride` numbers apart: where they lie, or copies in `room`. */
INLINE TARGET const float *OF(widened)(const Span *s, int values, int64_t first, int64_t rows, float *room,
                                       int64_t *stride) {
    const char *all = values ? s->values : s->keys;
    int wide = s->size == sizeof(float);
    *stride = s->dim;
    if (s->first + first < s->quantized) {
        OF(decoded)(s, values, first, rows, room);
        return room;
    }
    if (wide && !s->slots) {
        *stride = s->stride;
        return (const float *)all + slot_of(s, first) * s->stride;
    }
    for (int64_t row = 0; row < rows; row++) {
        const char *from = all + slot_of(s, first + row) * s->stride * s->size;
        for (int64_t d = 0; d < s->dim; d += LANES)
            OF(store)(room + row * s->dim + d, wide ? OF(load)((const float *)from + d)
                                                    : OF(load_half)((const uint16_t *)from + d));
    }
    return room;
}

/* scores [count, LANES] of the queries [dim, LANES]; up to KEYS - 1 more keys than there are get scores too. */
INLINE TARGET void OF(score)(const Span *s, const float *queries, float *scores) {
    float room[KEYS * MOST_DIM];
    for (int64_t first = 0; first < s->count; first += KEYS) {
        int64_t count = s->count - first < KEYS ? s->count - first : KEYS, stride;
        const float *block = OF(widened)(s, 0, first, count, room, &stride);
        const float *keys[KEYS];
        VECTOR sums[KEYS];
        UNROLL for (int k = 0; k < KEYS; k++) {
            keys[k] = block + (k < count ? k : count - 1) * stride;
            sums[k] = OF(zero)();
        }
        for (int64_t d = 0; d < s->dim; d++) {
            VECTOR query = OF(load)(queries + d * LANES);
            UNROLL for (int k = 0; k < KEYS; k++)
                sums[k] = OF(add_product)(query, OF(broadcast)(keys[k][d]), sums[k]);
        }
        UNROLL for (int k = 0; k < KEYS; k++) OF(store)(scores + (first + k) * LANES, sums[k]);
    }
}

/* Put `value` where a token does not see a key. */
INLINE TARGET void OF(hide)(const Span *s, int64_t row, float *scores, float value) {
    for (int64_t key = s->seen > 0 ? s->seen : 0; key < s->count; key++)
        for (int lane = 0; lane < LANES; lane++)
            if (!sees(s, (row + lane) % s->tokens, key)) scores[key * LANES + lane] = value;
}

/* The scores become weights relative to the largest one of each lane; returns these and the weights' sums. */
INLINE TARGET void OF(weigh)(const Span *s, int64_t row, float *scores, float peak[LANES], float total[LANES]) {
    VECTOR highest = OF(broadcast)(LOWEST), sum = OF(zero)();
    OF(hide)(s, row, scores, LOWEST);
    for (int64_t key = 0; key < s->count; key++) highest = OF(larger)(highest, OF(load)(scores + key * LANES));
    OF(store)(peak, highest);
    VECTOR below = OF(multiply)(highest, OF(broadcast)(-1));
    for (int64_t key = 0; key < s->count; key++)
        OF(store)(scores + key * LANES, OF(exponential)(OF(add)(OF(load)(scores + key * LANES), below)));
    OF(hide)(s, row, scores, 0);
    for (int64_t key = 0; key < s->count; key++) sum = OF(add)(sum, OF(load)(scores + key * LANES));
    OF(store)(total, sum);
}

/* chunks [chunks, rows] from `row` on: sums of the weights [count, LANES] of each chunk's keys. */
INLINE TARGET void OF(sum_chunks)(const Span *s, const float *weights, int64_t lanes, int64_t rows, float *chunks) {
    int64_t key = 0, end = s->chunk - s->first % s->chunk;
    for (; key < s->count; chunks += rows, end += s->chunk) {
        float sums[LANES];
        VECTOR sum = OF(zero)();
        for (; key < s->count && key < end; key++) sum = OF(add)(sum, OF(load)(weights + key * LANES));
        OF(store)(sums, sum);
        memcpy(chunks, sums, (size_t)lanes * sizeof *sums);
    }
}

/* Add weights times `count` values to `pieces` vectors of some rows of mixed [ROWS, dim]; the weights lie LANES apart. */
INLINE TARGET void OF(mix)(const float *values, int64_t stride, const float *weights, int64_t count, int64_t column,
                           int pieces, float *const mixed[ROWS]) {
    VECTOR sums[ROWS][PIECES];
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int p = 0; p < pieces; p++) sums[r][p] = OF(load)(mixed[r] + column + p * LANES);
    for (int64_t key = 0; key < count; key++) {
        const float *at = values + key * stride + column;
        VECTOR value[PIECES];
        UNROLL for (int p = 0; p < pieces; p++) value[p] = OF(load)(at + p * LANES);
        UNROLL for (int r = 0; r < ROWS; r++) {
            VECTOR weight = OF(broadcast)(weights[key * LANES + r]);
            UNROLL for (int p = 0; p < pieces; p++) sums[r][p] = OF(add_product)(weight, value[p], sums[r][p]);
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int p = 0; p < pieces; p++) OF(store)(mixed[r] + column + p * LANES, sums[r][p]);
}

/* mixed [rows, dim] = the transposed weights [count, LANES] times the values, some of which stay in the nearest cache
 * for all rows. */
INLINE TARGET void OF(mix_all)(const Span *s, const float *weights, int64_t rows, float *mixed) {
    float nobody_s[MOST_DIM], room[VALUES * MOST_DIM];
    memset(mixed, 0, (size_t)(rows * s->dim) * sizeof *mixed);
    memset(nobody_s, 0, sizeof nobody_s);
    for (int64_t first = 0; first < s->count; first += VALUES) {
        int64_t count = s->count - first < VALUES ? s->count - first : VALUES, column, stride;
        const float *values = OF(widened)(s, 1, first, count, room, &stride);
        for (int64_t row = 0; row < rows; row += ROWS) {
            const float *own = weights + first * LANES + row;
            float *to[ROWS];
            for (int r = 0; r < ROWS; r++) to[r] = row + r < rows ? mixed + (row + r) * s->dim : nobody_s;
            for (column = 0; column + PIECES * LANES <= s->dim; column += PIECES * LANES)
                OF(mix)(values, stride, own, count, column, PIECES, to);
            for (; column < s->dim; column += LANES) OF(mix)(values, stride, own, count, column, 1, to);
        }
    }
}

/* LANES rows, or fewer, from `row` on. */
INLINE TARGET void OF(some_rows)(const Span *s, int64_t row, int64_t rows, int64_t all, Partial out) {
    float queries[MOST_DIM * LANES], scores[(SPAN + KEYS) * LANES], peak[LANES], total[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        const float *query = query_of(s, row + (lane < rows ? lane : rows - 1));
        for (int64_t d = 0; d < s->dim; d++) queries[d * LANES + lane] = query[d] * s->scale;
    }
    OF(score)(s, queries, scores);
    OF(weigh)(s, row, scores, peak, total);
    OF(mix_all)(s, scores, rows, out.mixed + row * s->dim);
    if (s->chunk) OF(sum_chunks)(s, scores, rows, all, out.chunks + row);
    memcpy(out.peak + row, peak, (size_t)rows * sizeof *peak);
    memcpy(out.total + row, total, (size_t)rows * sizeof *total);
}

/* The rows from `row` to `end` of `rows` in all. */
static TARGET void OF(span)(const Span *s, int64_t row, int64_t end, int64_t rows, Partial out) {
    for (; row < end; row += LANES)
        OF(some_rows)(s, row, end - row < LANES ? end - row : LANES, rows, out);
}

#undef OF
#undef PATH_NAME
#undef TARGET
#undef VECTOR
#undef LANES
#undef UNROLL
#endif
