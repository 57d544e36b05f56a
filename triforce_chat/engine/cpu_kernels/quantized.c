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

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PLAIN, AVX2, AVX512 };
enum { F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30 };

#define STEP 32       /* weights that are dequantized at a time */
#define MOST_ROWS 8   /* rows of activations that share a dequantized step */
#define OUTPUTS 64    /* that a group of rows is multiplied with while it is in the nearest cache */
#define LINE 16       /* outputs that lie in one line of the processor's cache */
#define INLINE static inline __attribute__((always_inline, unused))
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#if defined(__clang__)
#define UNROLL_FULLY _Pragma("clang loop unroll(full)")
#else
#define UNROLL_FULLY _Pragma("GCC unroll 16")
#endif

/* Of libgomp, whose threads torch uses too; LLVM's and Intel's runtimes have both as well. */
extern void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void);
extern int omp_get_num_threads(void);

/* A matrix of `outputs` rows of `stride` bytes. */
typedef struct {
    const uint8_t *data;
    int64_t stride, outputs, columns;
} Matrix;

/* `count` rows of weights from `first` on, times `rows` rows of activations. */
typedef void (*Product)(const Matrix *w, int64_t first, int count, const float *x, int rows, float *y);
typedef void (*Dequantize)(const uint8_t *row, int64_t columns, float *out);

typedef struct {
    Product product;
    Dequantize dequantize;
} Kernels;

INLINE float number(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint16_t word16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

INLINE uint32_t word32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

INLINE float half_of(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 31) return number(sign | 0x7f800000u | fraction << 13);
    if (exponent) return number(sign | (exponent + 112) << 23 | fraction << 13);
    float small = (float)fraction * 0x1p-24f;
    return sign ? -small : small;
}

INLINE int weights_of(int kind) {
    return kind == Q4_K || kind == Q5_K || kind == Q6_K ? 256 : STEP;
}

INLINE int bytes_of(int kind) {
    switch (kind) {
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

/* ---- Plain C: a vector is an array that the compiler may or may not keep in registers. ---- */

typedef struct { float lane[16]; } PlainVector;

INLINE PlainVector zero_plain(void) { return (PlainVector){{0}}; }
INLINE PlainVector load_plain(const float *at) { PlainVector v; memcpy(&v, at, sizeof v); return v; }
INLINE void store_plain(float *at, PlainVector v) { memcpy(at, &v, sizeof v); }
INLINE PlainVector add_product_plain(PlainVector a, PlainVector b, PlainVector sum) {
    for (int i = 0; i < 16; i++) sum.lane[i] += a.lane[i] * b.lane[i];
    return sum;
}
INLINE float sum_plain(PlainVector v) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) v.lane[i] += v.lane[i + n];
    return v.lane[0];
}
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
#define OUTPUTS_AT_ONCE(rows) 1
#define UNROLL
#define EACH_COUNT TILES(rows)
#include "quantized.c"

#if defined(__x86_64__)
#include <immintrin.h>

/* ---- AVX2 ---- */

#define TARGET2 __attribute__((target("avx2,fma,f16c")))

INLINE TARGET2 __m256 zero_avx2(void) { return _mm256_setzero_ps(); }
INLINE TARGET2 __m256 load_avx2(const float *at) { return _mm256_loadu_ps(at); }
INLINE TARGET2 void store_avx2(float *at, __m256 v) { _mm256_storeu_ps(at, v); }
INLINE TARGET2 __m256 add_product_avx2(__m256 a, __m256 b, __m256 sum) { return _mm256_fmadd_ps(a, b, sum); }
INLINE TARGET2 float sum_avx2(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
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
#define OUTPUTS_AT_ONCE(rows) ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1)
#define UNROLL UNROLL_FULLY
#define EACH_COUNT UP_TO(1) UP_TO(2) UP_TO(4) TILES(MOST_ROWS)
#include "quantized.c"

/* ---- AVX-512 ---- */

#define TARGET5 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))

INLINE TARGET5 __m512 zero_avx512(void) { return _mm512_setzero_ps(); }
INLINE TARGET5 __m512 load_avx512(const float *at) { return _mm512_loadu_ps(at); }
INLINE TARGET5 void store_avx512(float *at, __m512 v) { _mm512_storeu_ps(at, v); }
INLINE TARGET5 __m512 add_product_avx512(__m512 a, __m512 b, __m512 sum) { return _mm512_fmadd_ps(a, b, sum); }
INLINE TARGET5 float sum_avx512(__m512 v) {
    return sum_avx2(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
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
    if (kind == F16 || kind == BF16) {
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
#define OUTPUTS_AT_ONCE(rows) ((rows) <= 4 ? 4 : 2)
#define UNROLL UNROLL_FULLY
#define EACH_COUNT UP_TO(1) UP_TO(2) UP_TO(3) UP_TO(4) UP_TO(6) TILES(MOST_ROWS)
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

typedef struct {
    Kernels kernels;
    Matrix w;
    const float *x;
    const int64_t *ids;
    float *y;
    int64_t rows;
} Job;

/* This thread's part of `count` things that are handed out by whole lines of the cache. */
static void share_of(int64_t count, int64_t *from, int64_t *to) {
    int64_t lines = (count + LINE - 1) / LINE, thread = omp_get_thread_num(), threads = omp_get_num_threads();
    *from = lines * thread / threads * LINE;
    *to = lines * (thread + 1) / threads * LINE;
    if (*to > count) *to = count;
}

static void multiply_share(void *data) {
    const Job *job = data;
    int64_t from, to, groups = (job->rows + MOST_ROWS - 1) / MOST_ROWS;
    share_of(job->w.outputs, &from, &to);
    for (int64_t at = from; at < to; at += OUTPUTS)
        for (int64_t group = 0; group < groups; group++) {
            int64_t first = job->rows * group / groups, next = job->rows * (group + 1) / groups;
            int count = (int)(to - at < OUTPUTS ? to - at : OUTPUTS);
            job->kernels.product(&job->w, at, count, job->x + first * job->w.columns, (int)(next - first),
                                 job->y + first * job->w.outputs);
        }
}

static void dequantize_share(void *data) {
    const Job *job = data;
    int64_t from, to;
    share_of(job->rows, &from, &to);
    for (int64_t at = from; at < to; at++) {
        const uint8_t *row = job->w.data + (job->ids ? job->ids[at] : at) * job->w.stride;
        job->kernels.dequantize(row, job->w.columns, job->y + at * job->w.columns);
    }
}

/* y [rows, outputs] = x [rows, columns] times the transposed matrix. */
void multiply(int path, int kind, const uint8_t *data, int64_t stride, int64_t outputs, int64_t columns, const float *x,
              int64_t rows, float *y, int threads) {
    Job job = {kernels_of(path, kind), {data, stride, outputs, columns}, x, NULL, y, rows};
    GOMP_parallel(multiply_share, &job, (unsigned)threads, 0);
}

/* out [count, columns] = the rows `ids`, or the first ones where ids is NULL. */
void dequantize(int path, int kind, const uint8_t *data, int64_t stride, int64_t columns, const int64_t *ids,
                int64_t count, float *out, int threads) {
    Job job = {kernels_of(path, kind), {data, stride, 0, columns}, NULL, ids, out, count};
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
            if (kind == F16 || kind == BF16)
                for (int64_t i = at; i < columns; i++)
                    sum += single(kind, matrix->data + (first + o) * stride, i) * x[r * columns + i];
            y[r * matrix->outputs + first + o] = sum;
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
KIND(F16) KIND(BF16) KIND(Q4_0) KIND(Q4_1) KIND(Q5_0) KIND(Q5_1) KIND(Q8_0) KIND(Q4_K) KIND(Q5_K) KIND(Q6_K)
#undef KIND
#undef UP_TO
#undef TILES

static Kernels OF(kernels)(int kind) {
    switch (kind) {
#define KIND(kind) case kind: return (Kernels){OF(product_##kind), OF(dequantize_##kind)};
    KIND(F16) KIND(BF16) KIND(Q4_0) KIND(Q4_1) KIND(Q5_0) KIND(Q5_1) KIND(Q8_0) KIND(Q4_K) KIND(Q5_K)
    default: return (Kernels){OF(product_Q6_K), OF(dequantize_Q6_K)};
#undef KIND
    }
}

#undef OF
#undef PATH_NAME
#undef TARGET
#undef VECTOR
#undef LANES
#undef OUTPUTS_AT_ONCE
#undef UNROLL
#undef EACH_COUNT
#endif
