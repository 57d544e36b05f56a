/* Products of fp32 activations with GGUF's quantized matrices, whose blocks are dequantized in registers.
 *
 * Every weight gets exactly the fp32 value that gguf's own code gives it: scales and codes are so short that their
 * product is exact, and a minimum is added with one rounding. A sum's order depends on the instruction path and on the
 * number of columns alone, so a row of activations has the same product whatever rows are multiplied beside it.
 *
 * The file is compiled once and holds three paths: plain C, AVX2 and AVX-512. It includes itself to give each path a
 * copy of what they share. Layouts of blocks: ggml-common.h and ggml-quants.c of github.com/ggml-org/ggml.
 */
#ifndef PATH_NAME

#include "vectors.h"

#include <math.h>
#include <stdlib.h>

enum { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30 };

#define STEP 32       /* weights that are dequantized at a time */
#define OUTPUTS 64    /* that a group of rows is multiplied with while it is in the nearest cache */
#define MATRICES 3    /* at most, that share an input */

/* A matrix of `outputs` rows of `stride` bytes; its products are written to rows of `width` numbers. */
typedef struct {
    const uint8_t *data;
    int64_t stride, outputs, columns, width;
} Matrix;

/* `count` rows of weights from `first` on, times `rows` rows of activations. */
typedef void (*Product)(const Matrix *w, int64_t first, int count, const float *x, int rows, float *y);
typedef void (*Dequantize)(const uint8_t *row, int64_t columns, float *out);

/* y [count] += factor * x. */
typedef void (*AddScaled)(float *y, float factor, const float *x, int64_t count);

typedef struct {
    Product product;
    Dequantize dequantize;
    int most_rows; /* that a product takes */
} Kernels;

INLINE uint32_t word32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

INLINE int weights_of(int kind) {
    return kind == Q4_K || kind == Q5_K || kind == Q6_K ? 256 : STEP;
}

INLINE int bytes_of(int kind) {
    switch (kind) {
    case F32: return 4 * STEP;
    case F16: case BF16: return 2 * STEP;
    case Q4_0: return 18;
    case Q4_1: return 20;
    case Q5_0: return 22;
    case Q5_1: return 24;
    case Q8_0: return 34;
    case Q4_K: return 144;
    case Q5_K: return 176;
    default: return 210;
    }
}

/* A weight of a type without blocks; their rows may end within a step. */
INLINE float single(int kind, const uint8_t *row, int64_t at) {
    if (kind == F32) return number(word32(row + 4 * at));
    return kind == F16 ? half_of(word16(row + 2 * at)) : number((uint32_t)word16(row + 2 * at) << 16);
}

/* The 6-bit scales, then the 6-bit minima, of the eight groups of a Q4_K or Q5_K block. */
INLINE void six_bits(const uint8_t *packed, uint8_t numbers[16]) {
    uint32_t low = word32(packed), high = word32(packed + 4), rest = word32(packed + 8), out[4];
    out[0] = low & 0x3f3f3f3fu;
    out[1] = (rest & 0x0f0f0f0fu) | ((low >> 2) & 0x30303030u);
    out[2] = high & 0x3f3f3f3fu;
    out[3] = ((rest >> 4) & 0x0f0f0f0fu) | ((high >> 2) & 0x30303030u);
    memcpy(numbers, out, sizeof out);
}

/* ---- Plain C ---- */

INLINE float half_plain(const uint8_t *at) { return half_of(word16(at)); }

INLINE void prepare_plain(int kind, const uint8_t *block, float scales[16]) {
    if (kind == Q6_K) {
        float d = half_of(word16(block + 208));
        for (int i = 0; i < 16; i++) scales[i] = d * (int8_t)block[192 + i];
    } else {
        uint8_t numbers[16];
        six_bits(block + 4, numbers);
        float d = half_of(word16(block)), m = half_of(word16(block + 2));
        for (int i = 0; i < 8; i++) scales[i] = d * numbers[i], scales[8 + i] = m * numbers[8 + i];
    }
}

INLINE void unpack_plain(int kind, const uint8_t *block, int step, const float *scales, PlainVector w[2]) {
    const uint8_t *fifths = block + (kind == Q5_1 ? 4 : 2);
    float d = 0, m = 0;
    if (kind == Q4_0 || kind == Q4_1 || kind == Q5_0 || kind == Q5_1 || kind == Q8_0) d = half_of(word16(block));
    if (kind == Q4_1 || kind == Q5_1) m = half_of(word16(block + 2));
    for (int i = 0; i < STEP; i++) {
        float *out = &w[i / 16].lane[i % 16];
        int upper = i / 16 * 4; /* bits that the code is shifted by where bytes hold weights i and i + 16 */
        int fifth = (word32(fifths) >> i & 1) << 4;
        switch (kind) {
        case Q4_0: *out = d * ((block[2 + i % 16] >> upper & 15) - 8); break;
        case Q4_1: *out = d * (block[4 + i % 16] >> upper & 15) + m; break;
        case Q5_0: *out = d * (((block[6 + i % 16] >> upper & 15) | fifth) - 16); break;
        case Q5_1: *out = d * ((block[8 + i % 16] >> upper & 15) | fifth) + m; break;
        case Q8_0: *out = d * (int8_t)block[2 + i]; break;
        case Q4_K: *out = scales[step] * (block[16 + step / 2 * 32 + i] >> step % 2 * 4 & 15) - scales[8 + step]; break;
        case Q5_K: {
            int code = (block[48 + step / 2 * 32 + i] >> step % 2 * 4 & 15) | (block[16 + i] >> step & 1) << 4;
            *out = scales[step] * code - scales[8 + step];
            break;
        }
        case Q6_K: {
            int low = block[step / 4 * 64 + step % 2 * 32 + i] >> step % 4 / 2 * 4 & 15;
            int high = block[128 + step / 4 * 32 + i] >> step % 4 * 2 & 3;
            *out = scales[2 * step + i / 16] * ((low | high << 4) - 32);
            break;
        }
        default: *out = single(kind, block, i);
        }
    }
}

#define PATH_NAME plain
#define TARGET
#define VECTOR PlainVector
#define LANES 16
#define MOST_ROWS 8
#define OUTPUTS_AT_ONCE(rows) 1
#define UNROLL
#define EACH_COUNT TILES(rows)
#include "quantized.c"

#if defined(__x86_64__)
/* ---- AVX2 ---- */

INLINE TARGET2 float half_avx2(const uint8_t *at) { return _cvtsh_ss(word16(at)); }

INLINE TARGET2 void prepare_avx2(int kind, const uint8_t *block, float scales[16]) {
    __m128i numbers;
    __m256 first, second;
    if (kind == Q6_K) {
        numbers = _mm_loadu_si128((const __m128i *)(block + 192));
        first = second = _mm256_set1_ps(half_avx2(block + 208));
        first = _mm256_mul_ps(first, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)));
        second = _mm256_mul_ps(second, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(numbers, 8))));
    } else {
        uint8_t bytes[16];
        six_bits(block + 4, bytes);
        numbers = _mm_loadu_si128((const __m128i *)bytes);
        first = _mm256_set1_ps(half_avx2(block)), second = _mm256_set1_ps(half_avx2(block + 2));
        first = _mm256_mul_ps(first, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(numbers)));
        second = _mm256_mul_ps(second, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(numbers, 8))));
    }
    _mm256_storeu_ps(scales, first);
    _mm256_storeu_ps(scales + 8, second);
}

INLINE TARGET2 __m256i bytes_avx2(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }

/* The lower halves of 16 bytes, then the upper ones. */
INLINE TARGET2 __m256i nibbles_avx2(const uint8_t *at) {
    __m128i packed = _mm_loadu_si128((const __m128i *)at);
    __m256i both = _mm256_set_m128i(_mm_srli_epi16(packed, 4), packed);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* The numbers `bits` & `mask` of each byte of a vector, after a shift by `right` bits within words. */
INLINE TARGET2 __m256i field_avx2(__m256i bytes, int right, int mask) {
    return _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(right)), _mm256_set1_epi8((char)mask));
}

/* 16 in the bytes whose bit of 32 is set. */
INLINE TARGET2 __m256i fifths_avx2(const uint8_t *at) {
    const __m256i spread = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)word32(at)), spread);
    bytes = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    return _mm256_and_si256(bytes, _mm256_set1_epi8(16));
}

/* The codes of 32 weights as bytes, signed where the type has no minimum. */
INLINE TARGET2 __m256i codes_avx2(int kind, const uint8_t *block, int step) {
    switch (kind) {
    case Q4_0: return _mm256_sub_epi8(nibbles_avx2(block + 2), _mm256_set1_epi8(8));
    case Q4_1: return nibbles_avx2(block + 4);
    case Q5_0:
        return _mm256_sub_epi8(_mm256_or_si256(nibbles_avx2(block + 6), fifths_avx2(block + 2)), _mm256_set1_epi8(16));
    case Q5_1: return _mm256_or_si256(nibbles_avx2(block + 8), fifths_avx2(block + 4));
    case Q8_0: return bytes_avx2(block + 2);
    case Q4_K: return field_avx2(bytes_avx2(block + 16 + step / 2 * 32), step % 2 * 4, 15);
    case Q5_K: {
        __m256i low = field_avx2(bytes_avx2(block + 48 + step / 2 * 32), step % 2 * 4, 15);
        __m256i high = field_avx2(bytes_avx2(block + 16), step, 1);
        return _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
    }
    default: {
        __m256i low = field_avx2(bytes_avx2(block + step / 4 * 64 + step % 2 * 32), step % 4 / 2 * 4, 15);
        __m256i high = field_avx2(bytes_avx2(block + 128 + step / 4 * 32), step % 4 * 2, 3);
        return _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)), _mm256_set1_epi8(32));
    }
    }
}

INLINE TARGET2 void unpack_avx2(int kind, const uint8_t *block, int step, const float *scales, __m256 w[4]) {
    if (kind == F32) {
        UNROLL_FULLY for (int i = 0; i < 4; i++) w[i] = load_avx2((const float *)block + 8 * i);
        return;
    }
    if (kind == F16 || kind == BF16) {
        UNROLL_FULLY for (int i = 0; i < 4; i++) {
            __m128i half = _mm_loadu_si128((const __m128i *)(block + 16 * i));
            if (kind == F16) w[i] = _mm256_cvtph_ps(half);
            else w[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
        }
        return;
    }
    __m256i codes = codes_avx2(kind, block, step);
    __m128i part[2] = {_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)};
    __m256 d[2], m = _mm256_setzero_ps();
    if (kind == Q6_K) d[0] = _mm256_set1_ps(scales[2 * step]), d[1] = _mm256_set1_ps(scales[2 * step + 1]);
    else if (kind == Q4_K || kind == Q5_K) d[0] = d[1] = _mm256_set1_ps(scales[step]);
    else d[0] = d[1] = _mm256_set1_ps(half_avx2(block));
    if (kind == Q4_K || kind == Q5_K) m = _mm256_set1_ps(-scales[8 + step]);
    if (kind == Q4_1 || kind == Q5_1) m = _mm256_set1_ps(half_avx2(block + 2));
    int minimum = kind == Q4_1 || kind == Q5_1 || kind == Q4_K || kind == Q5_K;
    UNROLL_FULLY for (int i = 0; i < 4; i++) {
        __m128i eight = i % 2 ? _mm_srli_si128(part[i / 2], 8) : part[i / 2];
        __m256 q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
        w[i] = minimum ? _mm256_fmadd_ps(q, d[i / 2], m) : _mm256_mul_ps(q, d[i / 2]);
    }
}

#define PATH_NAME avx2
#define TARGET TARGET2
#define VECTOR __m256
#define LANES 8
#define MOST_ROWS 8
#define OUTPUTS_AT_ONCE(rows) ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1)
#define UNROLL UNROLL_FULLY
#define EACH_COUNT UP_TO(1) UP_TO(2) UP_TO(4) TILES(MOST_ROWS)
#include "quantized.c"

/* ---- AVX-512 ---- */

INLINE TARGET5 void prepare_avx512(int kind, const uint8_t *block, float scales[16]) {
    prepare_avx2(kind, block, scales);
}

INLINE TARGET5 __m512i spread_avx512(const uint8_t *at) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
}

/* Codes of 4 or 5 bits pick their weight from a table of 16 or twice 16, which a group of weights shares: no
 * conversion, and no multiplication for each weight. The instruction reads the lowest 4 bits of an index alone. */
INLINE TARGET5 void look_up_avx512(int kind, const uint8_t *block, int step, const float *scales, __m512 w[2]) {
    const __m512 count = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    int five = kind == Q5_0 || kind == Q5_1 || kind == Q5_K;
    __m512 d, low, high;
    __m512i index[2];
    uint32_t fifths = 0;
    if (kind == Q4_K || kind == Q5_K) {
        const uint8_t *codes = block + (five ? 48 : 16) + step / 2 * 32;
        index[0] = spread_avx512(codes), index[1] = spread_avx512(codes + 16);
        if (step % 2) index[0] = _mm512_srli_epi32(index[0], 4), index[1] = _mm512_srli_epi32(index[1], 4);
        d = _mm512_set1_ps(scales[step]);
        __m512 m = _mm512_set1_ps(scales[8 + step]);
        low = _mm512_fmsub_ps(count, d, m);
        high = _mm512_fmsub_ps(_mm512_add_ps(count, _mm512_set1_ps(16)), d, m);
        if (five) fifths = _mm256_test_epi8_mask(bytes_avx2(block + 16), _mm256_set1_epi8((char)(1 << step)));
    } else {
        index[0] = spread_avx512(block + (kind == Q4_0 ? 2 : kind == Q4_1 ? 4 : kind == Q5_0 ? 6 : 8));
        index[1] = _mm512_srli_epi32(index[0], 4);
        d = _mm512_set1_ps(half_avx2(block));
        if (kind == Q4_0 || kind == Q5_0) {
            low = _mm512_mul_ps(_mm512_sub_ps(count, _mm512_set1_ps(kind == Q4_0 ? 8 : 16)), d);
            high = _mm512_mul_ps(count, d);
        } else {
            __m512 m = _mm512_set1_ps(half_avx2(block + 2));
            low = _mm512_fmadd_ps(count, d, m);
            high = _mm512_fmadd_ps(_mm512_add_ps(count, _mm512_set1_ps(16)), d, m);
        }
        if (five) fifths = word32(block + (kind == Q5_0 ? 2 : 4));
    }
    UNROLL_FULLY for (int i = 0; i < 2; i++) {
        w[i] = _mm512_permutexvar_ps(index[i], low);
        if (five) w[i] = _mm512_mask_permutexvar_ps(w[i], (__mmask16)(fifths >> 16 * i), index[i], high);
    }
}

INLINE TARGET5 void unpack_avx512(int kind, const uint8_t *block, int step, const float *scales, __m512 w[2]) {
    if (kind == F32) {
        UNROLL_FULLY for (int i = 0; i < 2; i++) w[i] = load_avx512((const float *)block + 16 * i);
    } else if (kind == F16 || kind == BF16) {
        UNROLL_FULLY for (int i = 0; i < 2; i++) {
            __m256i half = bytes_avx2(block + 32 * i);
            if (kind == F16) w[i] = _mm512_cvtph_ps(half);
            else w[i] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
    } else if (kind == Q6_K || kind == Q8_0) {
        __m256i codes = codes_avx2(kind, block, step);
        __m128i part[2] = {_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)};
        UNROLL_FULLY for (int i = 0; i < 2; i++) {
            __m512 d = _mm512_set1_ps(kind == Q6_K ? scales[2 * step + i] : half_avx2(block));
            w[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(part[i])), d);
        }
    } else look_up_avx512(kind, block, step, scales, w);
}

#define PATH_NAME avx512
#define TARGET TARGET5
#define VECTOR __m512
#define LANES 16
#define MOST_ROWS 6 /* eight would leave registers for two outputs only, and each weight's unpacking counts twice */
#define OUTPUTS_AT_ONCE(rows) 4
#define UNROLL UNROLL_FULLY
#define EACH_COUNT UP_TO(1) UP_TO(2) UP_TO(3) UP_TO(4) TILES(MOST_ROWS)
#include "quantized.c"

#endif

/* ---- Called from Python ---- */

/* The best path that this processor can run. */
int best_path(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
                       && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                   ? AVX512 : AVX2;
#endif
    return PLAIN;
}

static Kernels kernels_of(int path, int kind) {
#if defined(__x86_64__)
    if (path == AVX512) return kernels_avx512(kind);
    if (path == AVX2) return kernels_avx2(kind);
#endif
    (void)path;
    return kernels_plain(kind);
}

/* Matrices that are multiplied with the same rows [rows, columns], and what is done before and after. */
typedef struct {
    int32_t path, count, gated, threads;
    int64_t columns;
    const float *norm; /* weights of an RMS norm of the rows before, or NULL */
    float eps;
    int32_t kind[MATRICES];
    const uint8_t *data[MATRICES];
    int64_t stride[MATRICES], outputs[MATRICES];
    const float *bias[MATRICES]; /* each may be NULL */
    /* A product of narrow matrices that is added to the matrix: `up` [rank, outputs] transposed times `down`. */
    int64_t rank[MATRICES];
    const float *down[MATRICES], *up[MATRICES];
} Projection;

static AddScaled add_scaled_of(int path) {
#if defined(__x86_64__)
    if (path == AVX512) return add_scaled_avx512;
    if (path == AVX2) return add_scaled_avx2;
#endif
    (void)path;
    return add_scaled_plain;
}

typedef struct {
    const Projection *projection;
    Kernels kernels[MATRICES];
    Matrix matrices[MATRICES];
    const float *x, *added;
    float *normed, *y[MATRICES];
    float *narrow[MATRICES]; /* [rows, rank]: the products with `down` */
    int64_t rows;
} Job;

static void norm_row(const float *x, int64_t columns, const float *weight, float eps, float *out) {
    float squares[LINE] = {0}, sum = 0;
    for (int64_t i = 0; i < columns; i++) squares[i % LINE] += x[i] * x[i];
    for (int i = 0; i < LINE; i++) sum += squares[i];
    float factor = 1 / sqrtf(sum / (float)columns + eps);
    for (int64_t i = 0; i < columns; i++) out[i] = x[i] * factor * weight[i];
}

static void multiply_share(const Kernels *kernels, const Matrix *w, const float *x, int64_t rows, float *y, int64_t from,
                           int64_t to) {
    int64_t groups = (rows + kernels->most_rows - 1) / kernels->most_rows;
    for (int64_t at = from; at < to; at += OUTPUTS)
        for (int64_t group = 0; group < groups; group++) {
            int64_t first = rows * group / groups, next = rows * (group + 1) / groups;
            int count = (int)(to - at < OUTPUTS ? to - at : OUTPUTS);
            kernels->product(w, at, count, x + first * w->columns, (int)(next - first), y + first * w->width);
        }
}

/* The products of one thread's outputs get what is added to them. */
static void add_share(const Job *job, int m, int64_t from, int64_t to) {
    const Projection *p = job->projection;
    const AddScaled add_scaled = add_scaled_of(p->path);
    int64_t width = job->matrices[m].width, rank = p->rank[m];
    for (int64_t row = 0; row < job->rows; row++) {
        float *y = job->y[m] + row * width + from;
        if (p->bias[m]) add_scaled(y, 1, p->bias[m] + from, to - from);
        for (int64_t r = 0; r < rank; r++)
            add_scaled(y, job->narrow[m][row * rank + r], p->up[m] + r * p->outputs[m] + from, to - from);
        if (job->added) add_scaled(y, 1, job->added + row * width + from, to - from);
    }
}

/* gates [rows, width] become silu of them times the others. */
static void gate_share(float *gates, const float *others, int64_t rows, int64_t width, int64_t from, int64_t to) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t at = row * width + from; at < row * width + to; at++)
            gates[at] *= others[at] / (1 + expf(-gates[at]));
}

static void norm_share(const Job *job) {
    const Projection *p = job->projection;
    int64_t from, to;
    share_of(job->rows, &from, &to);
    for (int64_t row = from; row < to; row++)
        norm_row(job->x + row * p->columns, p->columns, p->norm, p->eps, job->normed + row * p->columns);
    GOMP_barrier();
}

static void narrow_share(const Job *job, const float *x) {
    const Projection *p = job->projection;
    const Kernels kernels = kernels_of(p->path, F32);
    for (int m = 0; m < p->count; m++) {
        const Matrix down = {(const uint8_t *)p->down[m], p->columns * 4, p->rank[m], p->columns, p->rank[m]};
        int64_t from, to;
        share_of(p->rank[m], &from, &to);
        multiply_share(&kernels, &down, x, job->rows, job->narrow[m], from, to);
    }
    GOMP_barrier();
}

static void project_share(void *data) {
    const Job *job = data;
    const Projection *p = job->projection;
    const float *x = p->norm ? job->normed : job->x;
    if (p->norm) norm_share(job);
    if (job->narrow[0]) narrow_share(job, x);
    for (int m = 0; m < p->count; m++) {
        const Matrix *w = &job->matrices[m];
        int64_t from, to;
        lines_of(w->outputs, &from, &to);
        multiply_share(&job->kernels[m], w, x, job->rows, job->y[m], from, to);
        add_share(job, m, from, to);
        /* A thread has the same share of both matrices. */
        if (p->gated && m) gate_share(job->y[0], job->y[1], job->rows, w->width, from, to);
    }
}

/* y [rows, width]: the products of the rows x with all matrices one beside the other; or if `gated`, where there are two
 * matrices of one size, silu of the first one's times the second one's. `added` [rows, width] is added, unless it is
 * NULL, which it has to be for several matrices. */
void project(const Projection *p, const float *x, int64_t rows, const float *added, float *y) {
    Job job = {p, {{0}}, {{0}}, x, added, NULL, {0}, {0}, rows};
    int64_t width = 0, ranks = 0, normed = p->norm ? rows * p->columns : 0;
    for (int m = 0; m < p->count; m++) width += p->gated && m ? 0 : p->outputs[m], ranks += p->rank[m];
    int64_t second = p->gated ? rows * width : 0;
    float *room = malloc((size_t)(normed + second + rows * ranks) * sizeof *room), *narrow = room + normed + second;
    job.normed = room;
    for (int m = 0; m < p->count; m++) {
        job.kernels[m] = kernels_of(p->path, p->kind[m]);
        job.matrices[m] = (Matrix){p->data[m], p->stride[m], p->outputs[m], p->columns, width};
        job.y[m] = !m ? y : p->gated ? room + normed : job.y[m - 1] + p->outputs[m - 1];
        if (ranks) job.narrow[m] = narrow;
        narrow += rows * p->rank[m];
    }
    GOMP_parallel(project_share, &job, (unsigned)p->threads, 0);
    free(room);
}

typedef struct {
    Dequantize dequantize;
    const uint8_t *data;
    int64_t stride, columns, count;
    const int64_t *ids;
    float *out;
} Reading;

static void dequantize_share(void *data) {
    const Reading *r = data;
    int64_t from, to;
    lines_of(r->count, &from, &to);
    for (int64_t at = from; at < to; at++)
        r->dequantize(r->data + (r->ids ? r->ids[at] : at) * r->stride, r->columns, r->out + at * r->columns);
}

/* out [count, columns] = the rows `ids`, or the first ones where ids is NULL. */
void dequantize(int path, int kind, const uint8_t *data, int64_t stride, int64_t columns, const int64_t *ids,
                int64_t count, float *out, int threads) {
    Reading job = {kernels_of(path, kind).dequantize, data, stride, columns, count, ids, out};
    GOMP_parallel(dequantize_share, &job, (unsigned)threads, 0);
}

#else /* a path's copy of what all of them share */

#define OF(name) JOIN(name, PATH_NAME)

/* Products of `outputs` rows of weights with `rows` rows of activations, computed as `padded` rows, the last one again and
 * again. All but `rows` are constants where it is inlined, so that the sums stay in registers. */
INLINE TARGET void OF(tile)(int kind, const Matrix *matrix, int64_t first, int outputs, const float *x, int rows,
                            int padded, float *y) {
    const int bytes = bytes_of(kind), steps = weights_of(kind) / STEP, halves = steps > 1 ? 2 : 1;
    const int64_t columns = matrix->columns, blocks = columns / weights_of(kind), stride = matrix->stride;
    const uint8_t *block = matrix->data + first * stride;
    VECTOR sums[4][MOST_ROWS];
    const float *row[MOST_ROWS];
    UNROLL for (int r = 0; r < padded; r++) {
        row[r] = x + (r < rows ? r : rows - 1) * columns;
        UNROLL for (int o = 0; o < outputs; o++) sums[o][r] = OF(zero)();
    }
    int64_t at = 0;
    for (int64_t b = 0; b < blocks; b++, block += bytes) {
        float scales[4][16];
        UNROLL for (int o = 0; o < outputs; o++) {
            const uint8_t *later = block + (o + outputs) * stride; /* what the next tile reads */
            __builtin_prefetch(later);
            if (bytes > 64) __builtin_prefetch(later + 64);
            if (bytes > 128) __builtin_prefetch(later + 128);
            if (steps > 1) OF(prepare)(kind, block + o * stride, scales[o]);
        }
        for (int pair = 0; pair < steps; pair += 2)
            UNROLL for (int half = 0; half < halves; half++) { /* which most types keep in the same bytes */
                VECTOR w[4][STEP / LANES];
                UNROLL for (int o = 0; o < outputs; o++)
                    OF(unpack)(kind, block + o * stride, pair + half, scales[o], w[o]);
                UNROLL for (int r = 0; r < padded; r++)
                    UNROLL for (int i = 0; i < STEP / LANES; i++) {
                        VECTOR part = OF(load)(row[r] + at + i * LANES);
                        UNROLL for (int o = 0; o < outputs; o++)
                            sums[o][r] = OF(add_product)(w[o][i], part, sums[o][r]);
                    }
                at += STEP;
            }
    }
    VECTOR found[4][MOST_ROWS]; /* in memory, so that a loop can read them */
    UNROLL for (int o = 0; o < outputs; o++)
        UNROLL for (int r = 0; r < padded; r++) found[o][r] = sums[o][r];
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++) {
            float sum = OF(sum)(found[o][r]);
            if (kind == F32 || kind == F16 || kind == BF16)
                for (int64_t i = at; i < columns; i++)
                    sum += single(kind, matrix->data + (first + o) * stride, i) * x[r * columns + i];
            y[r * matrix->width + first + o] = sum;
        }
}

INLINE TARGET void OF(tiles)(int kind, const Matrix *w, int64_t first, int count, const float *x, int rows, int padded,
                             float *y) {
    const int outputs = OUTPUTS_AT_ONCE(padded);
    int done = 0;
    for (; done + outputs <= count; done += outputs) OF(tile)(kind, w, first + done, outputs, x, rows, padded, y);
    if (outputs > 1)
        for (; done < count; done++) OF(tile)(kind, w, first + done, 1, x, rows, padded, y);
}

INLINE TARGET void OF(row)(int kind, const uint8_t *row, int64_t columns, float *out) {
    const int64_t blocks = columns / weights_of(kind);
    const uint8_t *block = row;
    float *to = out;
    for (int64_t b = 0; b < blocks; b++, block += bytes_of(kind)) {
        float scales[16];
        if (weights_of(kind) > STEP) OF(prepare)(kind, block, scales);
        for (int step = 0; step < weights_of(kind) / STEP; step++, to += STEP) {
            VECTOR w[STEP / LANES];
            OF(unpack)(kind, block, step, scales, w);
            UNROLL for (int i = 0; i < STEP / LANES; i++) OF(store)(to + i * LANES, w[i]);
        }
    }
    for (int64_t i = blocks * weights_of(kind); i < columns; i++) out[i] = single(kind, row, i);
}

static TARGET void OF(add_scaled)(float *y, float factor, const float *x, int64_t count) {
    const VECTOR factors = OF(broadcast)(factor);
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES)
        OF(store)(y + at, OF(add_product)(factors, OF(load)(x + at), OF(load)(y + at)));
    for (; at < count; at++) y[at] = fmaf(factor, x[at], y[at]);
}

#define TILES(padded) OF(tiles)(kind, w, first, count, x, rows, padded, y);
#define UP_TO(padded) if (rows <= padded) TILES(padded) else
#define KIND(kind_)                                                                                                    \
    static TARGET void OF(product_##kind_)(const Matrix *w, int64_t first, int count, const float *x, int rows,        \
                                           float *y) {                                                                 \
        enum { kind = kind_ };                                                                                         \
        EACH_COUNT                                                                                                     \
    }                                                                                                                  \
    static TARGET void OF(dequantize_##kind_)(const uint8_t *row, int64_t columns, float *out) {                       \
        OF(row)(kind_, row, columns, out);                                                                             \
    }
KIND(F32) KIND(F16) KIND(BF16) KIND(Q4_0) KIND(Q4_1) KIND(Q5_0) KIND(Q5_1) KIND(Q8_0) KIND(Q4_K) KIND(Q5_K) KIND(Q6_K)
#undef KIND
#undef UP_TO
#undef TILES

static Kernels OF(kernels)(int kind) {
    switch (kind) {
#define KIND(kind) case kind: return (Kernels){OF(product_##kind), OF(dequantize_##kind), MOST_ROWS};
    KIND(F32) KIND(F16) KIND(BF16) KIND(Q4_0) KIND(Q4_1) KIND(Q5_0) KIND(Q5_1) KIND(Q8_0) KIND(Q4_K) KIND(Q5_K)
    default: return (Kernels){OF(product_Q6_K), OF(dequantize_Q6_K), MOST_ROWS};
#undef KIND
    }
}

#undef OF
#undef PATH_NAME
#undef TARGET
#undef VECTOR
#undef LANES
#undef MOST_ROWS
#undef OUTPUTS_AT_ONCE
#undef UNROLL
#undef EACH_COUNT
#endif
