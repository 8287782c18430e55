// Networks of plain layers, evaluated block by block on the matrix units of x86 processors (AMX).
//
// A product of float32 matrices is taken as three of bfloat16: each factor is split into a leading
// part and a remainder, hi + lo, and hi hi + lo hi + hi lo is summed in float32. What is left out
// is 2^-16 of the result, so that values are those of float32 up to its rounding. A block of rows
// passes through all layers, and through all steps of a reverse process, without leaving the cache.

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int kRows = 32;  // of a block: two tiles
constexpr int kTile = 16;  // rows of a tile; columns of a tile of float32

using Bf16 = uint16_t;

// Memory that outlives a call, so that no call pays for fresh pages.
template <typename T>
class Buffer {
 public:
  T* room(size_t size) {
    if (size > size_) {
      std::free(data_);
      data_ = static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64));
      size_ = size;
    }
    return data_;
  }
  ~Buffer() { std::free(data_); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// ---------------------------------------------------------------------------------- elementwise

inline __m512 Exp(__m512 x) {
  const __m512 z = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));  // e^x = 2^z
  const __m512 f = _mm512_reduce_ps(z, 1);                         // z - floor(z)
  // 2^f on [0, 1], minimax of degree 5: relative error 7.5e-8.
  __m512 p = _mm512_set1_ps(1.8775766948e-03f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.9893406257e-03f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5826317519e-02f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4015361071e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9315308332e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.9999994040e-01f));
  return _mm512_scalef_ps(p, z);  // times 2^floor(z)
}

inline __m512 Mish(__m512 x) {  // x - 2 x / ((e^x + 1)^2 + 1)
  const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
  const __m512 e = _mm512_add_ps(Exp(_mm512_min_ps(x, _mm512_set1_ps(20.0f))), one);
  const __m512 d = _mm512_fmadd_ps(e, e, one);
  const __m512 guess = _mm512_rcp14_ps(d);
  const __m512 inverse = _mm512_mul_ps(guess, _mm512_fnmadd_ps(d, guess, two));  // Newton
  return _mm512_fnmadd_ps(_mm512_add_ps(x, x), inverse, x);
}

template <bool kMish>
inline __m512 Activate(__m512 x) {
  if constexpr (kMish) return Mish(x);
  return _mm512_max_ps(x, _mm512_setzero_ps());
}

inline __m256i Leading(__m512 x) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
}

inline __m512 Widen(__m256i hi) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(hi), 16));
}

inline void Split(__m512 x, Bf16* hi, Bf16* lo) {
  const __m256i h = Leading(x);
  _mm256_store_si256(reinterpret_cast<__m256i*>(hi), h);
  _mm256_store_si256(reinterpret_cast<__m256i*>(lo), Leading(_mm512_sub_ps(x, Widen(h))));
}

// ----------------------------------------------------------------------------------- the network

struct Layer {
  int in, out;
  const Bf16 *hi, *lo;  // tiles of [in / 32][out / 16][16][16][2]: pairs of rows interleaved
  const float* bias;
};

// Hidden layers after the first, and the linear head; the first is a sum of shares.
struct Net {
  int width, act_dim, out_dim;
  const float* act_weight;  // [act_dim, width]
  std::vector<Layer> hidden;
  const float* head;  // transposed: [out_dim, last]
  const float* head_bias;
};

void PackTile(const float* w, int ld, Bf16* hi, Bf16* lo) {
  for (int k = 0; k < kTile; ++k) {
    const __m512 a = _mm512_loadu_ps(w + (2 * k) * ld), b = _mm512_loadu_ps(w + (2 * k + 1) * ld);
    const __m256i ah = Leading(a), bh = Leading(b);
    const __m256i al = Leading(_mm512_sub_ps(a, Widen(ah)));
    const __m256i bl = Leading(_mm512_sub_ps(b, Widen(bh)));
    const auto pair = [](__m256i even, __m256i odd) {
      return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                             _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    };
    _mm512_store_si512(hi + 32 * k, pair(ah, bh));
    _mm512_store_si512(lo + 32 * k, pair(al, bl));
  }
}

Layer Pack(const float* weight, const float* bias, int in, int out, Bf16* room) {
  Bf16 *hi = room, *lo = room + in * out;
  for (int k = 0; k < in / 32; ++k)
    for (int n = 0; n < out / kTile; ++n) {
      const size_t at = (static_cast<size_t>(k) * (out / kTile) + n) * 512;
      PackTile(weight + 32 * k * out + kTile * n, out, hi + at, lo + at);
    }
  return {in, out, hi, lo, bias};
}

// Scratch of one block.
struct Work {
  Buffer<float> sums;
  Buffer<Bf16> hi, lo;
};

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The compiler does not know that tiles read and write memory.
inline void Fence() { asm volatile("" ::: "memory"); }

// Tiles 0 to 3 += tiles 4 and 5 (rows) times 6 and 7 (columns).
inline void MultiplyTiles() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// sums [kRows, out] = (hi + lo) [kRows, in] @ layer
void Multiply(const Layer& layer, const Bf16* hi, const Bf16* lo, float* sums) {
  const int in = layer.in, out = layer.out, columns = out / kTile;
  const int ld = 2 * in;  // bytes of a row
  Fence();
  for (int n = 0; n < columns; n += 2) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < in / 32; ++k) {
      const size_t at = (static_cast<size_t>(k) * columns + n) * 512;
      const Bf16 *xh = hi + 32 * k, *xl = lo + 32 * k;
      _tile_loadd(4, xh, ld);
      _tile_loadd(5, xh + kTile * in, ld);
      _tile_loadd(6, layer.lo + at, 64);
      _tile_loadd(7, layer.lo + at + 512, 64);
      MultiplyTiles();
      _tile_loadd(6, layer.hi + at, 64);
      _tile_loadd(7, layer.hi + at + 512, 64);
      MultiplyTiles();
      _tile_loadd(4, xl, ld);
      _tile_loadd(5, xl + kTile * in, ld);
      MultiplyTiles();
    }
    float* to = sums + kTile * n;
    _tile_stored(0, to, 4 * out);
    _tile_stored(1, to + kTile, 4 * out);
    _tile_stored(2, to + kTile * out, 4 * out);
    _tile_stored(3, to + kTile * out + kTile, 4 * out);
  }
  Fence();
}

// Activations of `size` sums, split into their two parts.
template <bool kMish>
void ActivateSplit(const float* sums, size_t size, Bf16* hi, Bf16* lo) {
  for (size_t i = 0; i < size; i += kTile)
    Split(Activate<kMish>(_mm512_load_ps(sums + i)), hi + i, lo + i);
}

template <bool kMish>
void ActivateAll(float* sums, size_t size) {
  for (size_t i = 0; i < size; i += kTile)
    _mm512_store_ps(sums + i, Activate<kMish>(_mm512_load_ps(sums + i)));
}

// The network on `rows` rows: share [row] is what the first layer has but for actions and `extra`.
// out [kRows, out_dim]
template <bool kMish>
void Forward(const Net& net, const float* const* share, const float* extra, const float* actions,
             int rows, Work& work, float* out) {
  const int width = net.width, d = net.act_dim;
  int widest = width;
  for (const Layer& layer : net.hidden) widest = std::max(widest, layer.out);
  float* sums = work.sums.room(kRows * widest);
  Bf16 *hi = work.hi.room(kRows * widest), *lo = work.lo.room(kRows * widest);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < width; c += kTile) {
      __m512 x = _mm512_loadu_ps(share[r] + c);
      if (extra) x = _mm512_add_ps(x, _mm512_loadu_ps(extra + c));
      for (int j = 0; j < d; ++j)
        x = _mm512_fmadd_ps(_mm512_set1_ps(actions[r * d + j]),
                            _mm512_loadu_ps(net.act_weight + j * width + c), x);
      _mm512_store_ps(sums + r * width + c, x);
    }
  std::memset(sums + rows * width, 0, sizeof(float) * (kRows - rows) * width);
  int size = width;
  for (const Layer& layer : net.hidden) {
    ActivateSplit<kMish>(sums, kRows * size, hi, lo);
    Multiply(layer, hi, lo, sums);
    size = layer.out;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < size; c += kTile) {
        float* at = sums + r * size + c;
        _mm512_store_ps(at, _mm512_add_ps(_mm512_load_ps(at), _mm512_loadu_ps(layer.bias + c)));
      }
  }
  ActivateAll<kMish>(sums, rows * size);
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < net.out_dim; ++j) {
      __m512 sum = _mm512_setzero_ps();
      for (int c = 0; c < size; c += kTile)
        sum = _mm512_fmadd_ps(_mm512_load_ps(sums + r * size + c),
                              _mm512_load_ps(net.head + j * size + c), sum);
      out[r * net.out_dim + j] = _mm512_reduce_add_ps(sum) + net.head_bias[j];
    }
}

// ------------------------------------------------------------------------------------- arguments

// Operands carry leading axes when a call is mapped over seeds; they are walked through here.
struct Operand {
  const float* data;
  std::vector<int64_t> shape;  // without the leading axes
  size_t stride = 1;           // elements of one call
  const float* at(size_t call) const { return data + call * stride; }
};

template <typename Any>
Operand Take(const Any& any, size_t rank) {
  const auto dims = any.dimensions();
  Operand operand{static_cast<const float*>(any.untyped_data()), {}, 1};
  for (size_t i = dims.size() - rank; i < dims.size(); ++i) {
    operand.shape.push_back(dims[i]);
    operand.stride *= dims[i];
  }
  return operand;
}

// Operands of the layers behind the first: weight and bias of each, the head last.
struct Rest {
  std::vector<Operand> weights, biases;
};

ffi::Error TakeRest(ffi::RemainingArgs& args, bool ensemble, Rest& rest) {
  for (size_t i = 0; i + 1 < args.size(); i += 2) {
    auto weight = args.get<ffi::AnyBuffer>(i), bias = args.get<ffi::AnyBuffer>(i + 1);
    if (weight.has_error()) return weight.error();
    if (bias.has_error()) return bias.error();
    rest.weights.push_back(Take(*weight, 2 + ensemble));
    rest.biases.push_back(Take(*bias, 1 + ensemble));
  }
  return ffi::Error::Success();
}

// Net `member` of call `call`, packed into `packed` and `heads`.
Net Build(const Rest& rest, const float* act_weight, int act_dim, int width, size_t call,
          size_t member, bool ensemble, Bf16*& packed, float*& heads) {
  Net net{width, act_dim, 0, act_weight, {}, nullptr, nullptr};
  for (size_t i = 0; i < rest.weights.size(); ++i) {
    const Operand &w = rest.weights[i], &b = rest.biases[i];
    const int in = w.shape[ensemble], out = w.shape[ensemble + 1];
    const float* weight = w.at(call) + member * in * out;
    const float* bias = b.at(call) + member * out;
    if (i + 1 < rest.weights.size()) {
      net.hidden.push_back(Pack(weight, bias, in, out, packed));
      packed += 2 * in * out;
    } else {
      for (int j = 0; j < out; ++j)
        for (int c = 0; c < in; ++c) heads[j * in + c] = weight[c * out + j];
      net.out_dim = out, net.head = heads, net.head_bias = bias;
      heads += in * out;
    }
  }
  return net;
}

// Room for `nets` packed networks.
void Rooms(const Rest& rest, bool ensemble, size_t nets, Bf16*& packed, float*& heads) {
  thread_local Buffer<Bf16> kept_packed;
  thread_local Buffer<float> kept_heads;
  size_t size = 0;
  for (const Operand& w : rest.weights) size += w.shape[ensemble] * w.shape[ensemble + 1];
  packed = kept_packed.room(2 * size * nets), heads = kept_heads.room(size * nets);
}

// ------------------------------------------------------------------------------------------ work

// Blocks are claimed one by one, by the caller too: it waits only for blocks that others began, so
// a pool whose threads are all busy, or all waiting like this one, cannot stop it.
template <typename Run>
void ForBlocks(ffi::ThreadPool& pool, size_t blocks, const Run& run) {
  struct Shared {
    std::atomic<size_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable finished;
  };
  auto shared = std::make_shared<Shared>();
  const auto help = [shared, blocks, &run] {
    size_t block = shared->next.fetch_add(1);
    if (block >= blocks) return;  // `run` may be gone by now
    static thread_local Work work;
    const TileConfig config;
    _tile_loadconfig(&config);
    for (; block < blocks; block = shared->next.fetch_add(1)) {
      run(block, work);
      if (shared->done.fetch_add(1) + 1 == blocks) {
        std::lock_guard<std::mutex> lock(shared->mutex);
        shared->finished.notify_all();
      }
    }
    _tile_release();
  };
  const size_t helpers = blocks < 4 ? 0 : std::max<int64_t>(pool.num_threads() - 1, 0);
  for (size_t i = 0; i < helpers; ++i) pool.Schedule(std::function<void()>(help));
  help();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->finished.wait(lock, [&] { return shared->done.load() == blocks; });
}

size_t Ceil(size_t a, size_t b) { return (a + b - 1) / b; }

// values(share [n, R, width], actions [M, act_dim], act_weight [n, act_dim, width], rest...) of an
// ensemble of n networks with one output: [n, M]. Row m has the share of m modulo R.
ffi::Error Values(ffi::ThreadPool pool, bool mish, ffi::AnyBuffer share_, ffi::AnyBuffer actions_,
                  ffi::AnyBuffer act_weight_, ffi::RemainingArgs args,
                  ffi::Result<ffi::AnyBuffer> out_) {
  const Operand share = Take(share_, 3), actions = Take(actions_, 2);
  const Operand act_weight = Take(act_weight_, 3);
  Rest rest;
  if (auto error = TakeRest(args, true, rest); error.failure()) return error;
  const size_t n = share.shape[0], R = share.shape[1], width = share.shape[2];
  const size_t M = actions.shape[0], d = actions.shape[1];
  const size_t calls = actions_.element_count() / actions.stride;
  Bf16* packed;
  float* heads;
  Rooms(rest, true, calls * n, packed, heads);
  std::vector<Net> nets;
  for (size_t call = 0; call < calls; ++call)
    for (size_t i = 0; i < n; ++i)
      nets.push_back(Build(rest, act_weight.at(call) + i * d * width, d, width, call, i, true,
                           packed, heads));
  float* out = static_cast<float*>(out_->untyped_data());
  const size_t per_net = Ceil(M, kRows);
  ForBlocks(pool, calls * n * per_net, [&](size_t block, Work& work) {
    const size_t net = block / per_net, first = block % per_net * kRows;
    const size_t call = net / n, member = net % n;
    const int rows = std::min<size_t>(kRows, M - first);
    const float* shares[kRows];
    for (int r = 0; r < rows; ++r)
      shares[r] = share.at(call) + (member * R + (first + r) % R) * width;
    const auto forward = mish ? Forward<true> : Forward<false>;
    forward(nets[net], shares, nullptr, actions.at(call) + first * d, rows, work,
            out + net * M + first);
  });
  return ffi::Error::Success();
}

// reverse(share [R, width], times [steps, width], start [M, d], noise [steps, M, d],
// coefficients [steps, 5], act_weight [d, width], rest...) of a noise network: [M, d]. A step is
//   a_0 = clip(k_0 a + k_1 eps, inner);  a <- clip(k_2 a_0 + k_3 a + k_4 noise, outer)
ffi::Error Reverse(ffi::ThreadPool pool, bool mish, float inner, float outer,
                   ffi::AnyBuffer share_, ffi::AnyBuffer times_, ffi::AnyBuffer start_,
                   ffi::AnyBuffer noise_, ffi::AnyBuffer coefficients_, ffi::AnyBuffer act_weight_,
                   ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out_) {
  const Operand share = Take(share_, 2), times = Take(times_, 2), start = Take(start_, 2);
  const Operand noise = Take(noise_, 3), coefficients = Take(coefficients_, 2);
  const Operand act_weight = Take(act_weight_, 2);
  Rest rest;
  if (auto error = TakeRest(args, false, rest); error.failure()) return error;
  const size_t R = share.shape[0], width = share.shape[1], steps = times.shape[0];
  const size_t M = start.shape[0], d = start.shape[1];
  const size_t calls = start_.element_count() / start.stride;
  Bf16* packed;
  float* heads;
  Rooms(rest, false, calls, packed, heads);
  std::vector<Net> nets;
  for (size_t call = 0; call < calls; ++call)
    nets.push_back(Build(rest, act_weight.at(call), d, width, call, 0, false, packed, heads));
  float* out = static_cast<float*>(out_->untyped_data());
  const size_t per_call = Ceil(M, kRows);
  ForBlocks(pool, calls * per_call, [&](size_t block, Work& work) {
    const size_t call = block / per_call, first = block % per_call * kRows;
    const int rows = std::min<size_t>(kRows, M - first);
    const float* shares[kRows];
    for (int r = 0; r < rows; ++r) shares[r] = share.at(call) + (first + r) % R * width;
    float* a = out + call * M * d + first * d;
    std::memcpy(a, start.at(call) + first * d, sizeof(float) * rows * d);
    std::vector<float> eps(kRows * d);
    const auto forward = mish ? Forward<true> : Forward<false>;
    const auto clip = [](float x, float limit) { return std::min(std::max(x, -limit), limit); };
    for (size_t step = 0; step < steps; ++step) {
      forward(nets[call], shares, times.at(call) + step * width, a, rows, work, eps.data());
      const float* k = coefficients.at(call) + 5 * step;
      const float* z = noise.at(call) + (step * M + first) * d;
      for (size_t i = 0; i < rows * d; ++i) {
        const float a_0 = clip(k[0] * a[i] + k[1] * eps[i], inner);
        a[i] = clip(k[2] * a_0 + k[3] * a[i] + k[4] * z[i], outer);
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace

// Whether this process may use the tiles: the kernel of the system grants them on request.
extern "C" int rescore_tiles() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_values, Values,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<bool>("mish")
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_reverse, Reverse,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<bool>("mish")
                                  .Attr<float>("inner")
                                  .Attr<float>("outer")
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>());
