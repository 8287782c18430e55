// Products of matrices in blocks of 32 rows and 32 columns, in one of two ways.
//
// On matrix units (AMX) a product of float32 factors is taken as three of bfloat16: each is split
// into a leading part and a remainder, hi + lo, and hi hi + lo hi + hi lo is summed in float32. What
// is left out is at most 3 x 2^-16 of the sum of |factor| |factor|, typically 1e-5 of a result
// without cancellation. On vector units the product is one of float32.
//
// The right factor is packed into tiles of [K / 32][columns / 16], each of 32 rows and 16 columns.
// What becomes of the sums is the caller's: emit(row, column, Vec) gets each of them once.
#pragma once

#include <cstddef>

#include "vector.h"

namespace {  // of every library its own

constexpr int kRows = 32;  // of a block: two tiles
constexpr int kTile = 16;  // rows of a tile on the left; columns of a tile
constexpr int kPacked = 32 * kTile;  // elements of a packed tile

// Sums that fit the registers: so many rows, of so many vectors each.
#ifdef __AVX512F__
constexpr int kHigh = 8, kWide = 2;
#else
constexpr int kHigh = 4, kWide = 2;
#endif

#ifdef __AMX_BF16__

using Bf16 = uint16_t;

struct Parts {  // of float32 numbers
  Bf16 *hi, *lo;
  Parts at(size_t offset) const { return {hi + offset, lo + offset}; }
};

// The parts of `size` numbers, in the memory of as many floats.
inline Parts PartsIn(float* room, size_t size) {
  Bf16* hi = reinterpret_cast<Bf16*>(room);
  return {hi, hi + size};
}

inline __m256i Leading(__m512 x) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
}

inline __m512 Widen(__m256i hi) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(hi), 16));
}

inline void Split(Vec x, Parts to) {
  const __m256i h = Leading(x);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to.hi), h);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to.lo), Leading(_mm512_sub_ps(x, Widen(h))));
}

// The parts of x [size], in `room` if they need any.
inline Parts PartsOf(float* x, size_t size, float* room) {
  const Parts parts = PartsIn(room, size);
  for (size_t i = 0; i < size; i += kLanes) Split(Load(x + i), parts.at(i));
  return parts;
}

// A tile of the right factor, from rows that are ld apart; its rows are interleaved in pairs.
inline void PackTile(const float* w, size_t ld, Parts to) {
  for (int k = 0; k < kTile; ++k) {
    const __m512 a = Load(w + 2 * k * ld), b = Load(w + (2 * k + 1) * ld);
    const __m256i ah = Leading(a), bh = Leading(b);
    const __m256i al = Leading(_mm512_sub_ps(a, Widen(ah)));
    const __m256i bl = Leading(_mm512_sub_ps(b, Widen(bh)));
    const auto pair = [](__m256i even, __m256i odd) {
      return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                             _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    };
    _mm512_store_si512(to.hi + 32 * k, pair(ah, bh));
    _mm512_store_si512(to.lo + 32 * k, pair(al, bl));
  }
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// While one lives, the thread that made it may multiply.
struct Units {
  Units() {
    static constexpr TileConfig config;  // static: GCC < 14 sees only 8 bytes of it read
    _tile_loadconfig(&config);
  }
  ~Units() { _tile_release(); }
};

// The compiler does not know that tiles read and write memory.
inline void Fence() { asm volatile("" ::: "memory"); }

// Tiles 0 to 3 += tiles 4 and 5 (rows) times 6 and 7 (columns); or only the upper row of these.
inline void MultiplyTiles(bool both) {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (!both) return;
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// a [rows, K] @ b [K, 32], where b starts at a packed tile; strips are `strip` apart.
template <typename Emit>
inline void Product(Parts a, size_t lda, Parts b, size_t strip, int K, int rows, const Emit& emit) {
  const size_t down = kTile * lda;
  const bool both = rows > kTile;
  Fence();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < K; k += 32) {
    const Parts x = a.at(k), w = b.at(k / 32 * strip);
    _tile_loadd(4, x.hi, 2 * lda);
    if (both) _tile_loadd(5, x.hi + down, 2 * lda);
    _tile_loadd(6, w.lo, 64);
    _tile_loadd(7, w.lo + kPacked, 64);
    MultiplyTiles(both);
    _tile_loadd(6, w.hi, 64);
    _tile_loadd(7, w.hi + kPacked, 64);
    MultiplyTiles(both);
    _tile_loadd(4, x.lo, 2 * lda);
    if (both) _tile_loadd(5, x.lo + down, 2 * lda);
    MultiplyTiles(both);
  }
  alignas(64) float sums[kRows * 32];
  _tile_stored(0, sums, 128);
  _tile_stored(1, sums + kTile, 128);
  if (both) {
    _tile_stored(2, sums + kTile * 32, 128);
    _tile_stored(3, sums + kTile * 32 + kTile, 128);
  }
  Fence();
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < 32; c += kLanes) emit(r, c, Load(sums + 32 * r + c));
}

#else

struct Parts {  // the numbers themselves
  float* all;
  Parts at(size_t offset) const { return {all + offset}; }
};

inline Parts PartsIn(float* room, size_t) { return {room}; }

inline void Split(Vec x, Parts to) { Store(to.all, x); }

inline Parts PartsOf(float* x, size_t, float*) { return {x}; }

inline void PackTile(const float* w, size_t ld, Parts to) {
  for (int k = 0; k < 32; ++k) std::memcpy(to.all + kTile * k, w + k * ld, sizeof(float) * kTile);
}

struct Units {
  ~Units() {}  // as little to do as that
};

template <typename Emit>
inline void Product(Parts a, size_t lda, Parts b, size_t strip, int K, int rows, const Emit& emit) {
  static_assert(kRows % kHigh == 0 && kTile % kLanes == 0 && 32 % (kWide * kLanes) == 0);
  for (int c = 0; c < 32; c += kWide * kLanes)
    for (int r = 0; r < rows; r += kHigh) {
      Vec sums[kHigh][kWide] = {};
      for (int s = 0; s < K / 32; ++s) {
        const float* x = a.all + r * lda + 32 * s;
        const float* w = b.all + s * strip + c / kTile * kPacked + c % kTile;
        for (int k = 0; k < 32; ++k) {
          Vec row[kWide];
          for (int j = 0; j < kWide; ++j)
            row[j] = Load(w + kTile * k + kLanes * j % kTile + kLanes * j / kTile * kPacked);
          for (int i = 0; i < kHigh; ++i)
            for (int j = 0; j < kWide; ++j) sums[i][j] += x[i * lda + k] * row[j];
        }
      }
      for (int i = 0; i < kHigh && r + i < rows; ++i)
        for (int j = 0; j < kWide; ++j) emit(r + i, c + kLanes * j, sums[i][j]);
    }
}

#endif

// A product in float32 on any unit, of a [rows, K] with any strides and b [K, columns] as it is: for
// few columns or rows, where packing would not pay. columns is a multiple of 32.
template <int kCount = kHigh, typename Emit>
inline void Plain(const float* a, size_t down, size_t along, const float* b, size_t ldb, int K,
                  int rows, int columns, const Emit& emit, int r = 0) {
  for (; r + kCount <= rows; r += kCount)
    for (int c = 0; c < columns; c += kWide * kLanes) {
      Vec sums[kCount][kWide] = {};
      for (int k = 0; k < K; ++k) {
        Vec row[kWide];
        for (int j = 0; j < kWide; ++j) row[j] = Load(b + k * ldb + c + kLanes * j);
        for (int i = 0; i < kCount; ++i)
          for (int j = 0; j < kWide; ++j) sums[i][j] += a[(r + i) * down + k * along] * row[j];
      }
      for (int i = 0; i < kCount; ++i)
        for (int j = 0; j < kWide; ++j) emit(r + i, c + kLanes * j, sums[i][j]);
    }
  if constexpr (kCount > 1)
    if (r < rows) Plain<kCount / 2>(a, down, along, b, ldb, K, rows, columns, emit, r);
}

// to [16, 16] = from^T, rows of `from` ld apart.
inline void Transpose(const float* from, size_t ld, float* to) {
#ifdef __AVX512F__
  __m512 r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = Load(from + i * ld);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
      r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  // r[4 q + c] has columns c, c + 4, c + 8, c + 12 of rows 4 q to 4 q + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
    const __m512 d = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
    const __m512 e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
    Store(to + 16 * c, _mm512_shuffle_f32x4(a, d, 0x88));
    Store(to + 16 * (c + 8), _mm512_shuffle_f32x4(a, d, 0xdd));
    Store(to + 16 * (c + 4), _mm512_shuffle_f32x4(b, e, 0x88));
    Store(to + 16 * (c + 12), _mm512_shuffle_f32x4(b, e, 0xdd));
  }
#else
  for (int i = 0; i < kTile; ++i)
    for (int j = 0; j < kTile; ++j) to[kTile * j + i] = from[i * ld + j];
#endif
}

}  // namespace
