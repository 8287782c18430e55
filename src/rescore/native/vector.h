// As many floats at a time as the vector unit holds, and the functions that networks and random
// numbers need of them. Written for AVX-512 and AVX2; the operators are the compiler's own.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {  // of every library its own

#ifdef __AVX512F__
constexpr int kBytes = 64;
#else
constexpr int kBytes = 32;
#endif
constexpr int kLanes = kBytes / 4;

typedef float Vec __attribute__((vector_size(kBytes)));
typedef int32_t Ints __attribute__((vector_size(kBytes)));
typedef uint32_t Bits __attribute__((vector_size(kBytes)));

inline Vec Load(const float* from) {
  Vec x;
  std::memcpy(&x, from, kBytes);
  return x;
}

inline void Store(float* to, Vec x) { std::memcpy(to, &x, kBytes); }

#ifdef __AVX512F__

inline Vec All(float x) { return _mm512_set1_ps(x); }
inline Vec Sqrt(Vec x) { return _mm512_sqrt_ps(x); }
inline float Sum(Vec x) { return _mm512_reduce_add_ps(x); }
inline bool Any(Ints mask) {
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
}

inline Vec Inverse(Vec d) {
  const Vec guess = _mm512_rcp14_ps(d);
  return guess * (2.0f - d * guess);  // Newton
}

// z - floor(z), and 2^floor(z) p
inline Vec Fraction(Vec z) { return _mm512_reduce_ps(z, 1); }
inline Vec Scale(Vec p, Vec z) { return _mm512_scalef_ps(p, z); }

#else

inline Vec All(float x) { return _mm256_set1_ps(x); }
inline Vec Sqrt(Vec x) { return _mm256_sqrt_ps(x); }
inline float Sum(Vec x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline bool Any(Ints mask) { return _mm256_movemask_ps(reinterpret_cast<__m256>(mask)); }
inline Vec Inverse(Vec d) { return 1.0f / d; }

inline Vec Fraction(Vec z) {
  const Vec f = z - _mm256_floor_ps(z);
  return z < -126.0f ? Vec{} : f;  // not NaN where z is -inf
}
inline Vec Scale(Vec p, Vec z) {  // 0 where the power is not normal; NaN in p stays NaN
  const Ints k = reinterpret_cast<Ints>(_mm256_cvtps_epi32(_mm256_floor_ps(z)));
  return z < -126.0f ? Vec{} : p * reinterpret_cast<Vec>((k + 127) << 23);
}

#endif

template <int kTerms>
inline Vec Polynomial(Vec x, const float (&c)[kTerms]) {  // highest power first
  Vec p = All(c[0]);
  for (int i = 1; i < kTerms; ++i) p = p * x + c[i];
  return p;
}

inline Vec Exp(Vec x) {
  const Vec z = x * 1.44269504f;  // e^x = 2^z
  // 2^f on [0, 1], minimax of degree 5: relative error 7.5e-8; rounding z adds |x| 6e-8.
  const Vec p = Polynomial(Fraction(z), {1.8775766948e-03f, 8.9893406257e-03f, 5.5826317519e-02f,
                                         2.4015361071e-01f, 6.9315308332e-01f, 9.9999994040e-01f});
  return Scale(p, z);
}

inline Vec Capped(Vec x) { return x > 20.0f ? All(20.0f) : x; }  // NaN stays NaN

inline Vec Mish(Vec x) {  // x n / (n + 2) for n = e^x (e^x + 2)
  const Vec e = Exp(Capped(x)), n = e * (e + 2.0f);
  return x * (n * Inverse(n + 2.0f));
}

// The derivative of x t(x): t + x (1 - t^2) sigmoid(x), with t = 1 - 2 / d, d = (e^x + 1)^2 + 1.
inline Vec MishSlope(Vec x) {
  const Vec e = Exp(Capped(x)), e1 = e + 1.0f, inverse = Inverse(e1 * e1 + 1.0f);
  const Vec t = 1.0f - 2.0f * inverse, steep = 4.0f * inverse * (1.0f - inverse);  // 1 - t^2
  return Capped(x) * steep * (e * Inverse(e1)) + t;
}

template <bool kMish>
inline Vec Activate(Vec x) {
  if constexpr (kMish) return Mish(x);
  return x < 0.0f ? Vec{} : x;  // NaN stays NaN
}

template <bool kMish>
inline Vec Slope(Vec x) {
  if constexpr (kMish) return MishSlope(x);
  return x > 0.0f ? All(1.0f) : Vec{};
}

// Logarithm of x > 0: minimax of log(1 + r) / r on [-1/4, 1/2].
inline Vec Log(Vec x) {
  const Ints bits = reinterpret_cast<Ints>(x), k = (bits - 0x3F400000) >> 23;  // x = m 2^k
  const Vec r = reinterpret_cast<Vec>(bits - (k << 23)) - 1.0f;                // m in [3/4, 3/2)
  const Vec p = Polynomial(
      r, {5.560100935e-02f, -1.222571533e-01f, 1.501782687e-01f, -1.680919222e-01f,
          1.997231654e-01f, -2.499367656e-01f, 3.333369639e-01f, -5.000006219e-01f,
          9.999999900e-01f});
  return __builtin_convertvector(k, Vec) * 0.693147181f + r * p;
}

// The inverse error function on (-1, 1), by the polynomials of Giles (2010), as XLA has it.
inline Vec InverseErf(Vec x) {
  const Vec w = -Log((1.0f - x) * (1.0f + x));
  Vec p = Polynomial(w - 2.5f, {2.81022636e-08f, 3.43273939e-07f, -3.5233877e-06f, -4.39150654e-06f,
                                0.00021858087f, -0.00125372503f, -0.00417768164f, 0.246640727f,
                                1.50140941f});
  const Ints tail = w >= 5.0f;
  if (Any(tail)) {
    const Vec far = Polynomial(
        Sqrt(w) - 3.0f, {-0.000200214257f, 0.000100950558f, 0.00134934322f, -0.00367342844f,
                         0.00573950773f, -0.0076224613f, 0.00943887047f, 1.00167406f, 2.83297682f});
    p = tail ? far : p;
  }
  return p * x;
}

// Word i of JAX's generator: Threefry-2x32 of the counter (0, i), its two words combined.
inline Bits Threefry(Bits count, uint32_t k0, uint32_t k1) {
  const uint32_t keys[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDAu};
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  Bits x = Bits{} + k0, y = count + k1;
  for (int round = 0; round < 5; ++round) {
    for (const int by : kRotations[round % 2]) {
      x += y;
      y = ((y << by) | (y >> (32 - by))) ^ x;
    }
    x += keys[(round + 1) % 3];
    y += keys[(round + 2) % 3] + round + 1;
  }
  return x ^ y;
}

}  // namespace
