/* Vectors of fp32 numbers on three instruction paths, and the threads: what the kernels have in common. */
#ifndef VECTORS
#define VECTORS

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PLAIN, AVX2, AVX512 };

#define LINE 16 /* fp32 numbers that lie in one line of the processor's cache */
#define INLINE static inline __attribute__((always_inline, unused))
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#if defined(__clang__)
#define UNROLL_FULLY _Pragma("clang loop unroll(full)")
#else
#define UNROLL_FULLY _Pragma("GCC unroll 16")
#endif

/* Of libgomp, whose threads torch uses too; LLVM's and Intel's runtimes have them as well. */
extern void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags);
extern void GOMP_barrier(void);
extern int omp_get_thread_num(void);
extern int omp_get_num_threads(void);

/* This thread's part of `count` things. */
INLINE void share_of(int64_t count, int64_t *from, int64_t *to) {
    int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    *from = count * thread / threads;
    *to = count * (thread + 1) / threads;
}

/* The same, handed out by whole lines of the cache. */
INLINE void lines_of(int64_t count, int64_t *from, int64_t *to) {
    share_of((count + LINE - 1) / LINE, from, to);
    *from *= LINE;
    *to *= LINE;
    if (*to > count) *to = count;
}

INLINE float number(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE uint16_t word16(const uint8_t *at) {
    uint16_t value;
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

/* ---- Plain C: a vector is an array that the compiler may or may not keep in registers. ---- */

typedef struct { float lane[16]; } PlainVector;

#define EACH_LANE for (int i = 0; i < 16; i++)
INLINE PlainVector zero_plain(void) { return (PlainVector){{0}}; }
INLINE PlainVector broadcast_plain(float x) { PlainVector v; EACH_LANE v.lane[i] = x; return v; }
INLINE PlainVector load_plain(const float *at) { PlainVector v; memcpy(&v, at, sizeof v); return v; }
INLINE void store_plain(float *at, PlainVector v) { memcpy(at, &v, sizeof v); }
INLINE PlainVector load_half_plain(const uint16_t *at) {
    PlainVector v;
    EACH_LANE v.lane[i] = half_of(at[i]);
    return v;
}
INLINE PlainVector load_bytes_plain(const int8_t *at) {
    PlainVector v;
    EACH_LANE v.lane[i] = at[i];
    return v;
}
INLINE PlainVector load_nibbles_plain(const uint8_t *at, int upper) {
    PlainVector v;
    EACH_LANE v.lane[i] = upper ? at[i] >> 4 : at[i] & 15;
    return v;
}
INLINE PlainVector add_plain(PlainVector a, PlainVector b) { EACH_LANE a.lane[i] += b.lane[i]; return a; }
INLINE PlainVector multiply_plain(PlainVector a, PlainVector b) { EACH_LANE a.lane[i] *= b.lane[i]; return a; }
INLINE PlainVector larger_plain(PlainVector a, PlainVector b) {
    EACH_LANE a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
INLINE PlainVector add_product_plain(PlainVector a, PlainVector b, PlainVector sum) {
    EACH_LANE sum.lane[i] += a.lane[i] * b.lane[i];
    return sum;
}
INLINE float sum_plain(PlainVector v) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) v.lane[i] += v.lane[i + n];
    return v.lane[0];
}
INLINE PlainVector low_bits_to_power_plain(PlainVector v) {
    EACH_LANE v.lane[i] = number(bits_of(v.lane[i]) << 23);
    return v;
}
#undef EACH_LANE

#if defined(__x86_64__)
#include <immintrin.h>

/* ---- AVX2 ---- */

#define TARGET2 __attribute__((target("avx2,fma,f16c")))

INLINE TARGET2 __m256 zero_avx2(void) { return _mm256_setzero_ps(); }
INLINE TARGET2 __m256 broadcast_avx2(float x) { return _mm256_set1_ps(x); }
INLINE TARGET2 __m256 load_avx2(const float *at) { return _mm256_loadu_ps(at); }
INLINE TARGET2 __m256 load_half_avx2(const uint16_t *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
}
INLINE TARGET2 __m256 load_bytes_avx2(const int8_t *at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}
INLINE TARGET2 __m256 load_nibbles_avx2(const uint8_t *at, int upper) {
    __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
    return _mm256_cvtepi32_ps(upper ? _mm256_srli_epi32(bytes, 4) : _mm256_and_si256(bytes, _mm256_set1_epi32(15)));
}
INLINE TARGET2 void store_avx2(float *at, __m256 v) { _mm256_storeu_ps(at, v); }
INLINE TARGET2 __m256 add_avx2(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
INLINE TARGET2 __m256 multiply_avx2(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
INLINE TARGET2 __m256 larger_avx2(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
INLINE TARGET2 __m256 add_product_avx2(__m256 a, __m256 b, __m256 sum) { return _mm256_fmadd_ps(a, b, sum); }
INLINE TARGET2 float sum_avx2(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE TARGET2 __m256 low_bits_to_power_avx2(__m256 v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 23));
}

/* ---- AVX-512 ---- */

#define TARGET5 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))

INLINE TARGET5 __m512 zero_avx512(void) { return _mm512_setzero_ps(); }
INLINE TARGET5 __m512 broadcast_avx512(float x) { return _mm512_set1_ps(x); }
INLINE TARGET5 __m512 load_avx512(const float *at) { return _mm512_loadu_ps(at); }
INLINE TARGET5 __m512 load_half_avx512(const uint16_t *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}
INLINE TARGET5 __m512 load_bytes_avx512(const int8_t *at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
}
INLINE TARGET5 __m512 load_nibbles_avx512(const uint8_t *at, int upper) {
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm512_cvtepi32_ps(upper ? _mm512_srli_epi32(bytes, 4) : _mm512_and_si512(bytes, _mm512_set1_epi32(15)));
}
INLINE TARGET5 void store_avx512(float *at, __m512 v) { _mm512_storeu_ps(at, v); }
INLINE TARGET5 __m512 add_avx512(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
INLINE TARGET5 __m512 multiply_avx512(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
INLINE TARGET5 __m512 larger_avx512(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
INLINE TARGET5 __m512 add_product_avx512(__m512 a, __m512 b, __m512 sum) { return _mm512_fmadd_ps(a, b, sum); }
INLINE TARGET5 float sum_avx512(__m512 v) {
    return sum_avx2(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
INLINE TARGET5 __m512 low_bits_to_power_avx512(__m512 v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 23));
}
#endif
#endif
