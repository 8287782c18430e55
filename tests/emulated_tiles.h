// The matrix unit in plain C++, for processors that have bfloat16 conversions but no tiles: included
// before the kernels, it takes the place of the compiler's own functions.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace emulated {

inline thread_local unsigned char tiles[8][16][64];

inline float Wide(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

inline void Load(int tile, const void* from, size_t stride) {
  for (int r = 0; r < 16; ++r)
    std::memcpy(tiles[tile][r], static_cast<const char*>(from) + r * stride, 64);
}

inline void Store(int tile, void* to, size_t stride) {
  for (int r = 0; r < 16; ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, tiles[tile][r], 64);
}

// c [16, 16] += a [16, 32] times b, whose rows are interleaved in pairs: b[k][2 n], b[k][2 n + 1].
inline void Multiply(int c, int a, int b) {
  const auto at = [](int tile, int row) { return reinterpret_cast<uint16_t*>(tiles[tile][row]); };
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      float sum;
      std::memcpy(&sum, tiles[c][m] + 4 * n, 4);
      for (int k = 0; k < 16; ++k)
        for (int i = 0; i < 2; ++i) sum += Wide(at(a, m)[2 * k + i]) * Wide(at(b, k)[2 * n + i]);
      std::memcpy(tiles[c][m] + 4 * n, &sum, 4);
    }
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) static_cast<void>(config)
#define _tile_release() static_cast<void>(0)
#define _tile_zero(tile) std::memset(emulated::tiles[tile], 0, 1024)
#define _tile_loadd(tile, from, stride) emulated::Load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::Store(tile, to, stride)
#define _tile_dpbf16ps(c, a, b) emulated::Multiply(c, a, b)
#define syscall(...) 0  // no tiles to be granted
