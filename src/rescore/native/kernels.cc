// Networks of plain layers and their gradients, on the matrix units of x86 processors (AMX).
//
// A product of float32 matrices is taken as three of bfloat16: each factor is split into a leading
// part and a remainder, hi + lo, and hi hi + lo hi + hi lo is summed in float32. What is left out is
// at most 3 x 2^-16 of the sum of |factor| |factor|, typically 1e-5 of a result without
// cancellation. A block of rows passes through all layers, and through all steps of a reverse
// process, without leaving the cache.

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Floats = ffi::Buffer<ffi::F32>;
using Words = ffi::Buffer<ffi::U32>;

constexpr int kRows = 32;  // of a block: two tiles
constexpr int kTile = 16;  // rows of a tile; columns of a tile of float32

using Bf16 = uint16_t;

// Memory that outlives a call, so that no call pays for fresh pages.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  T* room(size_t size) {
    if (size > size_) {
      std::free(data_);
      size_ = 0;
      data_ = static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64));
      if (!data_) throw std::bad_alloc();
      size_ = size;
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

inline __m512 Exp(__m512 x) {
  const __m512 z = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));  // e^x = 2^z
  const __m512 f = _mm512_reduce_ps(z, 1);                         // z - floor(z)
  // 2^f on [0, 1], minimax of degree 5: relative error 7.5e-8; rounding z adds |x| 6e-8.
  __m512 p = _mm512_set1_ps(1.8775766948e-03f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.9893406257e-03f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5826317519e-02f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4015361071e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9315308332e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.9999994040e-01f));
  return _mm512_scalef_ps(p, z);  // times 2^floor(z)
}

inline __m512 Inverse(__m512 d) {
  const __m512 guess = _mm512_rcp14_ps(d);
  return _mm512_mul_ps(guess, _mm512_fnmadd_ps(d, guess, _mm512_set1_ps(2.0f)));  // Newton
}

inline __m512 Mish(__m512 x) {  // x n / (n + 2) for n = e^x (e^x + 2)
  const __m512 two = _mm512_set1_ps(2.0f);
  const __m512 e = Exp(_mm512_min_ps(x, _mm512_set1_ps(20.0f)));
  const __m512 n = _mm512_mul_ps(e, _mm512_add_ps(e, two));
  return _mm512_mul_ps(_mm512_mul_ps(x, n), Inverse(_mm512_add_ps(n, two)));
}

// The derivative of x t(x): t + x (1 - t^2) sigmoid(x), with t = 1 - 2 / d, d = (e^x + 1)^2 + 1.
inline __m512 MishSlope(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 e = Exp(_mm512_min_ps(x, _mm512_set1_ps(20.0f))), e1 = _mm512_add_ps(e, one);
  const __m512 inv = Inverse(_mm512_fmadd_ps(e1, e1, one));
  const __m512 t = _mm512_fnmadd_ps(_mm512_set1_ps(2.0f), inv, one);
  const __m512 steep = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(4.0f), inv),
                                     _mm512_sub_ps(one, inv));  // 1 - t^2
  const __m512 sigmoid = _mm512_mul_ps(e, Inverse(e1));
  return _mm512_fmadd_ps(_mm512_mul_ps(x, steep), sigmoid, t);
}

template <bool kMish>
inline __m512 Activate(__m512 x) {
  if constexpr (kMish) return Mish(x);
  return _mm512_max_ps(_mm512_setzero_ps(), x);  // in this order NaN stays NaN
}

template <bool kMish>
inline __m512 Slope(__m512 x) {
  if constexpr (kMish) return MishSlope(x);
  const __mmask16 on = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_maskz_mov_ps(on, _mm512_set1_ps(1.0f));
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

// to [16, 16] = from^T, rows of `from` ld apart.
void Transpose(const float* from, size_t ld, float* to) {
  __m512 r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * ld);
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
    _mm512_storeu_ps(to + 16 * c, _mm512_shuffle_f32x4(a, d, 0x88));
    _mm512_storeu_ps(to + 16 * (c + 8), _mm512_shuffle_f32x4(a, d, 0xdd));
    _mm512_storeu_ps(to + 16 * (c + 4), _mm512_shuffle_f32x4(b, e, 0x88));
    _mm512_storeu_ps(to + 16 * (c + 12), _mm512_shuffle_f32x4(b, e, 0xdd));
  }
}

// A layer that is still to be packed, from weight [in, out] or its transpose.
struct Unpacked {
  const float* weight;
  int in, out;
  Bf16 *hi, *lo;
  bool transposed;

  int strips() const { return (transposed ? out : in) / 32; }

  void PackStrip(int k) const {
    alignas(64) float tile[32 * kTile];
    const int tiles = (transposed ? in : out) / kTile;
    for (int n = 0; n < tiles; ++n) {
      const size_t to = (static_cast<size_t>(k) * tiles + n) * 512;
      if (transposed) {
        const float* at = weight + static_cast<size_t>(kTile * n) * out + 32 * k;
        Transpose(at, out, tile);
        Transpose(at + kTile, out, tile + kTile * kTile);
        PackTile(tile, kTile, hi + to, lo + to);
      } else {
        PackTile(weight + 32 * k * out + kTile * n, out, hi + to, lo + to);
      }
    }
  }
};

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
// out [kRows, out_dim]; the sums of layer i go to keep[i] too, if there is `keep`.
template <bool kMish>
void Forward(const Net& net, const float* const* share, const float* extra, const float* actions,
             int rows, Work& work, float* out, float* const* keep = nullptr) {
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
    if (keep) std::memcpy(keep[&layer - net.hidden.data()], sums, sizeof(float) * rows * size);
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

// Operands carry leading axes when a call is mapped over seeds; they are walked through here.
struct Operand {
  const float* data;
  std::vector<int64_t> shape;  // without the leading axes
  size_t stride = 1;           // elements of one call
  size_t calls = 1;            // product of the leading axes
  const float* at(size_t call) const { return data + call * stride; }
};

Operand Take(const Floats& buffer, size_t rank) {
  const auto dims = buffer.dimensions();
  Operand operand;
  operand.data = buffer.typed_data();
  for (size_t i = 0; i + rank < dims.size(); ++i) operand.calls *= dims[i];
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

ffi::Error TakeRest(ffi::RemainingArgs& args, bool ensemble, Rest& rest, size_t first = 0) {
  for (size_t i = first; i + 1 < args.size(); i += 2) {
    auto weight = args.get<Floats>(i), bias = args.get<Floats>(i + 1);
    if (weight.has_error()) return weight.error();
    if (bias.has_error()) return bias.error();
    rest.weights.push_back(Take(*weight, 2 + ensemble));
    rest.biases.push_back(Take(*bias, 1 + ensemble));
  }
  return ffi::Error::Success();
}

// Net `member` of call `call`; its hidden layers are to be packed into `packed`.
Net Build(const Rest& rest, const float* act_weight, int act_dim, int width, size_t call,
          size_t member, bool ensemble, Bf16*& packed, float*& heads,
          std::vector<Unpacked>& unpacked) {
  Net net{width, act_dim, 0, act_weight, {}, nullptr, nullptr};
  for (size_t i = 0; i < rest.weights.size(); ++i) {
    const Operand &w = rest.weights[i], &b = rest.biases[i];
    const int in = w.shape[ensemble], out = w.shape[ensemble + 1];
    const float* weight = w.at(call) + member * in * out;
    const float* bias = b.at(call) + member * out;
    if (i + 1 < rest.weights.size()) {
      unpacked.push_back({weight, in, out, packed, packed + in * out, false});
      net.hidden.push_back({in, out, packed, packed + in * out, bias});
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

// A piece of work that several threads do together; `helper` tells them from the caller.
struct Task {
  void (*run)(void* of, bool helper);
  void* of;
};

// Threads that help the calling one. They look out for work a while before they sleep: waking a
// sleeping core takes longer than many a kernel, and an update calls kernels one after the other.
class Team {
 public:
  explicit Team(int helpers) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
    try {
      for (int i = 0; i < helpers; ++i) std::thread([this] { Help(); }).detach();
    } catch (const std::system_error&) {  // the system grants no more: fewer helpers
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // Runs `task` here and on every helper that comes in time; all have left it when this returns.
  void Run(const Task& task) noexcept {
    std::unique_lock<std::mutex> mine(owner_, std::try_to_lock);
    if (!mine.owns_lock()) return task.run(task.of, false);  // they help another thread
    task_ = task;
    rounding_ = _mm_getcsr();
    gate_.store(0);
    number_.fetch_add(1);
    if (asleep_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    task.run(task.of, false);
    gate_.fetch_or(kShut);
    for (int i = 1; gate_.load() != kShut; ++i)
      if (i % 1024 == 0)
        sched_yield();  // a helper at work may be waiting for this core
      else
        _mm_pause();
  }

 private:
  static constexpr uint32_t kShut = 1u << 31;
  static constexpr std::chrono::microseconds kLookout{2000};

  void Help() noexcept {
    for (uint64_t seen = 0;;) {
      const auto until = std::chrono::steady_clock::now() + kLookout;
      for (int i = 1; number_.load() == seen; ++i) {
        _mm_pause();
        if (i % 64 == 0 && std::chrono::steady_clock::now() > until) Sleep(seen);
      }
      seen = number_.load();
      // Who comes late may find the gate shut, or open for a later task, which is as good.
      uint32_t inside = gate_.load();
      while (!(inside & kShut) && !gate_.compare_exchange_weak(inside, inside + 1)) continue;
      if (inside & kShut) continue;
      _mm_setcsr(rounding_);  // as XLA has set it for the caller: bits must not depend on who works
      task_.run(task_.of, true);
      gate_.fetch_sub(1);
    }
  }

  void Sleep(uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.fetch_add(1);
    wake_.wait(lock, [&] { return number_.load() != seen; });
    asleep_.fetch_sub(1);
  }

  std::mutex owner_, mutex_;
  std::condition_variable wake_;
  std::atomic<int> asleep_{0};
  Task task_{};
  unsigned rounding_ = 0;
  alignas(64) std::atomic<uint64_t> number_{0};      // of the last task; helpers look at it
  alignas(64) std::atomic<uint32_t> gate_{kShut};  // kShut, or the number of helpers at work
};

int threads = 1;  // the caller and its helpers

Team& TheTeam() {
  static Team* team = new Team(threads - 1);  // never destroyed, because its threads never end
  return *team;
}

Work& Scratch() {
  static thread_local Work work;
  return work;
}

// Blocks are claimed one by one: by the caller from the first on, by helpers from the last on. So
// one core packs and uses the first network of an ensemble, the other one the last.
template <typename Run>
void ForBlocks(size_t blocks, const Run& run) {
  std::atomic<uint64_t> claimed{0};  // from the front, and from the back in the upper half
  const auto work = [&](bool helper) {
    const auto claim = [&](size_t& block) {
      const uint64_t before = claimed.fetch_add(helper ? uint64_t{1} << 32 : 1);
      const size_t front = before & 0xffffffff, back = before >> 32;
      block = helper ? blocks - 1 - back : front;
      return front + back < blocks;
    };
    size_t block;
    if (!claim(block)) return;
    static constexpr TileConfig config;  // static: GCC < 14 sees only 8 bytes of it read
    _tile_loadconfig(&config);
    do run(block, Scratch());
    while (claim(block));
    _tile_release();
  };
  if (blocks < 2) return work(false);
  using Own = decltype(work);
  const auto call = [](void* of, bool helper) { (*static_cast<Own*>(of))(helper); };
  TheTeam().Run({call, const_cast<void*>(static_cast<const void*>(&work))});
}

void PackAll(const std::vector<Unpacked>& layers) {
  std::vector<std::pair<const Unpacked*, int>> strips;
  for (const Unpacked& layer : layers)
    for (int k = 0; k < layer.strips(); ++k) strips.emplace_back(&layer, k);
  ForBlocks(strips.size(), [&](size_t i, Work&) { strips[i].first->PackStrip(strips[i].second); });
}

// The n networks of each call, packed; their memory is this thread's, until it packs again.
std::vector<Net> BuildAll(const Rest& rest, const Operand* act_weight, int act_dim, int width,
                          size_t calls, size_t n, bool ensemble) {
  Bf16* packed;
  float* heads;
  Rooms(rest, ensemble, calls * n, packed, heads);
  std::vector<Net> nets;
  std::vector<Unpacked> unpacked;
  for (size_t call = 0; call < calls; ++call)
    for (size_t i = 0; i < n; ++i) {
      const float* own = act_weight ? act_weight->at(call) + i * act_dim * width : nullptr;
      nets.push_back(
          Build(rest, own, act_dim, width, call, i, ensemble, packed, heads, unpacked));
    }
  PackAll(unpacked);
  return nets;
}

size_t Ceil(size_t a, size_t b) { return (a + b - 1) / b; }

// values(share [n, R, width], actions [M, act_dim], act_weight [n, act_dim, width], rest...) of an
// ensemble of n networks with one output: [n, M]. Row m has the share of m modulo R.
ffi::Error Values(bool mish, Floats share_, Floats actions_, Floats act_weight_,
                  ffi::RemainingArgs args, ffi::Result<Floats> out_) {
  const Operand share = Take(share_, 3), actions = Take(actions_, 2);
  const Operand act_weight = Take(act_weight_, 3);
  Rest rest;
  if (auto error = TakeRest(args, true, rest); error.failure()) return error;
  const size_t n = share.shape[0], R = share.shape[1], width = share.shape[2];
  const size_t M = actions.shape[0], d = actions.shape[1];
  const size_t calls = actions.calls;
  const std::vector<Net> nets = BuildAll(rest, &act_weight, d, width, calls, n, true);
  float* out = out_->typed_data();
  const size_t per_net = Ceil(M, kRows);
  ForBlocks(calls * n * per_net, [&](size_t block, Work& work) {
    const size_t net = block / per_net, first = block % per_net * kRows;
    const size_t call = net / n, member = net % n;
    const int rows = std::min<size_t>(kRows, M - first);
    const float* shares[kRows];
    for (int r = 0; r < rows; ++r)
      shares[r] = share.at(call) + (member * R + (first + r) % R) * width;
    const auto forward = mish ? Forward<true> : Forward<false>;
    forward(nets[net], shares, nullptr, actions.at(call) + first * d, rows, work,
            out + net * M + first, nullptr);
  });
  return ffi::Error::Success();
}

// reverse(share [R, width], times [steps, width], start [M, d], noise [steps, M, d],
// coefficients [steps, 5], act_weight [d, width], rest...) of a noise network: [M, d]. A step is
//   a_0 = clip(k_0 a + k_1 eps, inner);  a <- clip(k_2 a_0 + k_3 a + k_4 noise, outer)
ffi::Error Reverse(bool mish, float inner, float outer, Floats share_, Floats times_,
                   Floats start_, Floats noise_, Floats coefficients_, Floats act_weight_,
                   ffi::RemainingArgs args, ffi::Result<Floats> out_) {
  const Operand share = Take(share_, 2), times = Take(times_, 2), start = Take(start_, 2);
  const Operand noise = Take(noise_, 3), coefficients = Take(coefficients_, 2);
  const Operand act_weight = Take(act_weight_, 2);
  Rest rest;
  if (auto error = TakeRest(args, false, rest); error.failure()) return error;
  const size_t R = share.shape[0], width = share.shape[1], steps = times.shape[0];
  const size_t M = start.shape[0], d = start.shape[1];
  const size_t calls = start.calls;
  const std::vector<Net> nets = BuildAll(rest, &act_weight, d, width, calls, 1, false);
  float* out = out_->typed_data();
  const size_t per_call = Ceil(M, kRows);
  ForBlocks(calls * per_call, [&](size_t block, Work& work) {
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
      forward(nets[call], shares, times.at(call) + step * width, a, rows, work, eps.data(),
              nullptr);
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

// keep(first [n, M, width], rest...) of n networks: out [n, M, out_dim], and the sums before the
// activation of each hidden layer behind the first, [n, M, size].
ffi::Error Keep(bool mish, Floats first_, ffi::RemainingArgs args, ffi::Result<Floats> out_,
                ffi::RemainingRets kept_) {
  const Operand first = Take(first_, 3);
  Rest rest;
  if (auto error = TakeRest(args, true, rest); error.failure()) return error;
  const size_t n = first.shape[0], M = first.shape[1], width = first.shape[2];
  const size_t calls = first.calls;
  const std::vector<Net> nets = BuildAll(rest, nullptr, 0, width, calls, n, true);
  std::vector<float*> kept;
  for (size_t i = 0; i < kept_.size(); ++i) {
    auto buffer = kept_.get<Floats>(i);
    if (buffer.has_error()) return buffer.error();
    kept.push_back((*buffer)->typed_data());
  }
  float* out = out_->typed_data();
  const size_t per_net = Ceil(M, kRows);
  ForBlocks(nets.size() * per_net, [&](size_t block, Work& work) {
    const size_t which = block / per_net, row = block % per_net * kRows;
    const int rows = std::min<size_t>(kRows, M - row);
    const Net& net = nets[which];
    std::vector<float*> keep;
    for (size_t i = 0; i < kept.size(); ++i)
      keep.push_back(kept[i] + (which * M + row) * net.hidden[i].out);
    const float* shares[kRows];
    for (int r = 0; r < rows; ++r) shares[r] = first.data + (which * M + row + r) * width;
    const auto forward = mish ? Forward<true> : Forward<false>;
    forward(net, shares, nullptr, nullptr, rows, work,
            out + (which * M + row) * net.out_dim, keep.data());
  });
  return ffi::Error::Success();
}

// What the gradient of one layer's weights needs: inputs transposed, derivatives by its sums packed.
// Rows are padded with zeros to whole blocks.
struct Factors {
  int in, out;
  Bf16 *in_hi, *in_lo;    // [in, padded]
  Bf16 *out_hi, *out_lo;  // tiles of [padded / 32][out / 16][16][16][2]
  float* deltas;          // [padded, out]: derivatives of the loss by the sums
};

// Derivatives of one block of rows by all sums, from the head to the first layer.
template <bool kMish>
void Backward(const Net& net, const std::vector<Layer>& transposed, const float* const* sums,
              const float* grad, int row, int rows, int padded, const std::vector<Factors>& factors,
              bool weights, float* first_grad, Work& work) {
  const int depth = transposed.size();
  int widest = net.width;
  for (const Layer& layer : net.hidden) widest = std::max(widest, layer.out);
  float* delta = work.sums.room(kRows * widest);
  Bf16 *hi = work.hi.room(kRows * widest), *lo = work.lo.room(kRows * widest);
  int size = depth ? net.hidden[depth - 1].out : net.width;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < size; c += kTile) {
      __m512 x = _mm512_setzero_ps();
      for (int j = 0; j < net.out_dim; ++j)
        x = _mm512_fmadd_ps(_mm512_set1_ps(grad[r * net.out_dim + j]),
                            _mm512_load_ps(net.head + j * size + c), x);
      _mm512_store_ps(delta + r * size + c, x);
    }
  for (int i = depth; i >= 0; --i) {  // the sums of layer i; those of 0 are the first layer's
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < size; c += kTile) {
        float* at = delta + r * size + c;
        const __m512 slope = Slope<kMish>(_mm512_loadu_ps(sums[i] + r * size + c));
        _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), slope));
      }
    if (i == 0) break;
    std::memset(delta + rows * size, 0, sizeof(float) * (kRows - rows) * size);
    if (weights) {
      const Factors& f = factors[i - 1];
      std::memcpy(f.deltas + static_cast<size_t>(row) * size, delta, sizeof(float) * rows * size);
      for (int n = 0; n < size / kTile; ++n) {
        const size_t at = (static_cast<size_t>(row / 32) * (size / kTile) + n) * 512;
        PackTile(delta + kTile * n, size, f.out_hi + at, f.out_lo + at);
      }
      alignas(64) float tile[kTile * kTile], turned[kTile * kTile];
      for (int half = 0; half < kRows; half += kTile)
        for (int c = 0; c < f.in; c += kTile) {
          for (int r = 0; r < kTile; ++r)
            _mm512_store_ps(tile + kTile * r,
                            half + r < rows
                                ? Activate<kMish>(_mm512_loadu_ps(sums[i - 1] + (half + r) * f.in + c))
                                : _mm512_setzero_ps());
          Transpose(tile, kTile, turned);
          for (int k = 0; k < kTile; ++k) {
            const size_t at = static_cast<size_t>(c + k) * padded + row + half;
            Split(_mm512_load_ps(turned + kTile * k), f.in_hi + at, f.in_lo + at);
          }
        }
    }
    for (int at = 0; at < kRows * size; at += kTile)
      Split(_mm512_load_ps(delta + at), hi + at, lo + at);
    Multiply(transposed[i - 1], hi, lo, delta);
    size = transposed[i - 1].out;
  }
  for (int r = 0; r < rows; ++r)
    std::memcpy(first_grad + static_cast<size_t>(r) * size, delta + r * size, sizeof(float) * size);
}

// to [32, 32] of a weight's gradient: inputs^T times deltas, over all rows.
void MultiplyFactors(const Factors& f, int row, int column, int padded, float* to) {
  const int columns = f.out / kTile, ld = 2 * padded;
  Fence();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < padded / 32; ++k) {
    const size_t a = static_cast<size_t>(row) * padded + 32 * k;
    const size_t down = static_cast<size_t>(kTile) * padded;
    const size_t b = (static_cast<size_t>(k) * columns + column / kTile) * 512;
    _tile_loadd(4, f.in_hi + a, ld);
    _tile_loadd(5, f.in_hi + a + down, ld);
    _tile_loadd(6, f.out_lo + b, 64);
    _tile_loadd(7, f.out_lo + b + 512, 64);
    MultiplyTiles();
    _tile_loadd(6, f.out_hi + b, 64);
    _tile_loadd(7, f.out_hi + b + 512, 64);
    MultiplyTiles();
    _tile_loadd(4, f.in_lo + a, ld);
    _tile_loadd(5, f.in_lo + a + down, ld);
    MultiplyTiles();
  }
  float* at = to + static_cast<size_t>(row) * f.out + column;
  _tile_stored(0, at, 4 * f.out);
  _tile_stored(1, at + kTile, 4 * f.out);
  _tile_stored(2, at + kTile * f.out, 4 * f.out);
  _tile_stored(3, at + kTile * f.out + kTile, 4 * f.out);
  Fence();
}

// Gradients of the head [size, out_dim] and its bias.
template <bool kMish>
void BackwardHead(const float* sums, const float* grad, int M, int size, int out_dim,
                  float* transposed, float* weight, float* bias) {
  std::memset(transposed, 0, sizeof(float) * size * out_dim);
  std::memset(bias, 0, sizeof(float) * out_dim);
  for (int r = 0; r < M; ++r) {
    for (int j = 0; j < out_dim; ++j) bias[j] += grad[r * out_dim + j];
    for (int c = 0; c < size; c += kTile) {
      const __m512 h = Activate<kMish>(_mm512_loadu_ps(sums + static_cast<size_t>(r) * size + c));
      for (int j = 0; j < out_dim; ++j) {
        float* at = transposed + j * size + c;
        const __m512 g = _mm512_set1_ps(grad[r * out_dim + j]);
        _mm512_store_ps(at, _mm512_fmadd_ps(g, h, _mm512_load_ps(at)));
      }
    }
  }
  for (int j = 0; j < out_dim; ++j)
    for (int c = 0; c < size; ++c) weight[c * out_dim + j] = transposed[j * size + c];
}

// pull(grad [n, M, out_dim], first [n, M, width], kept sums..., rest...): derivatives by `first`,
// and if `weights` is set by weight and bias of each layer of the rest.
ffi::Error Pull(bool mish, bool weights, Floats grad_, Floats first_, ffi::RemainingArgs args,
                ffi::Result<Floats> out_, ffi::RemainingRets rets) {
  const Operand first = Take(first_, 3), grad = Take(grad_, 3);
  const size_t n = first.shape[0], M = first.shape[1], width = first.shape[2];
  const size_t calls = first.calls, depth = (args.size() - 2) / 3;
  std::vector<const float*> sums = {first.data};
  for (size_t i = 0; i < depth; ++i) {
    auto kept = args.get<Floats>(i);
    if (kept.has_error()) return kept.error();
    sums.push_back(kept->typed_data());
  }
  Rest rest;
  if (auto error = TakeRest(args, true, rest, depth); error.failure()) return error;
  std::vector<float*> results;
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<Floats>(i);
    if (buffer.has_error()) return buffer.error();
    results.push_back((*buffer)->typed_data());
  }
  const size_t padded = Ceil(M, kRows) * kRows, count = calls * n, per_net = padded / kRows;
  thread_local Buffer<Bf16> kept_bf16;
  thread_local Buffer<float> kept_float;
  size_t halves = 0, floats = 0;
  for (size_t i = 0; i < depth; ++i) {
    const size_t in = rest.weights[i].shape[1], out = rest.weights[i].shape[2];
    halves += 2 * in * out + (weights ? 2 * padded * (in + out) : 0);
    floats += padded * out;
  }
  const size_t last = rest.weights[depth].shape[1], out_dim = rest.weights[depth].shape[2];
  Bf16* half_room = kept_bf16.room(count * halves);
  float* float_room = kept_float.room(count * (floats + 2 * last * out_dim));
  std::vector<Net> nets(count);
  std::vector<std::vector<Layer>> transposed(count);
  std::vector<std::vector<Factors>> factors(count);
  std::vector<Unpacked> unpacked;
  const auto take = [](auto*& room, size_t size) {
    auto* got = room;
    room += size;
    return got;
  };
  for (size_t which = 0; which < count; ++which) {
    Net& net = nets[which];
    const size_t call = which / n, member = which % n;
    net.width = width, net.out_dim = out_dim;
    for (size_t i = 0; i < depth; ++i) {
      const size_t in = rest.weights[i].shape[1], out = rest.weights[i].shape[2];
      const float* weight = rest.weights[i].at(call) + member * in * out;
      net.hidden.push_back({int(in), int(out), nullptr, nullptr, nullptr});
      Bf16* room = take(half_room, 2 * in * out);
      unpacked.push_back({weight, int(in), int(out), room, room + in * out, true});
      transposed[which].push_back({int(out), int(in), room, room + in * out, nullptr});
      if (!weights) continue;
      Factors f;
      f.in = in, f.out = out;
      f.in_hi = take(half_room, in * padded), f.in_lo = take(half_room, in * padded);
      f.out_hi = take(half_room, out * padded), f.out_lo = take(half_room, out * padded);
      f.deltas = take(float_room, padded * out);
      factors[which].push_back(f);
    }
    float* head = take(float_room, last * out_dim);
    const float* weight = rest.weights[depth].at(call) + member * last * out_dim;
    for (size_t j = 0; j < out_dim; ++j)
      for (size_t c = 0; c < last; ++c) head[j * last + c] = weight[c * out_dim + j];
    net.head = head;
  }
  PackAll(unpacked);
  float* first_grad = out_->typed_data();
  ForBlocks(count * per_net, [&](size_t block, Work& work) {
    const size_t which = block / per_net, row = block % per_net * kRows;
    const int rows = std::min<size_t>(kRows, M - row);
    std::vector<const float*> own = {sums[0] + (which * M + row) * width};
    for (size_t i = 0; i < depth; ++i)
      own.push_back(sums[i + 1] + (which * M + row) * nets[which].hidden[i].out);
    const auto backward = mish ? Backward<true> : Backward<false>;
    backward(nets[which], transposed[which], own.data(), grad.data + (which * M + row) * out_dim,
             row, rows, padded, factors[which], weights,
             first_grad + (which * M + row) * width, work);
  });
  if (!weights) return ffi::Error::Success();
  size_t tiles = 0;  // of a network's weights
  for (size_t i = 0; i < depth; ++i)
    tiles += rest.weights[i].shape[1] / 32 * (rest.weights[i].shape[2] / 32);
  ForBlocks(count + count * tiles, [&](size_t block, Work&) {
    if (block < count) {  // heads first: the longest blocks
      const auto head = mish ? BackwardHead<true> : BackwardHead<false>;
      head(sums[depth] + block * M * last, grad.data + block * M * out_dim, M, last, out_dim,
           float_room + block * last * out_dim, results[2 * depth] + block * last * out_dim,
           results[2 * depth + 1] + block * out_dim);
      return;
    }
    const size_t which = (block - count) / tiles;
    size_t tile = (block - count) % tiles, i = 0;
    while (tile >= size_t(factors[which][i].in / 32 * (factors[which][i].out / 32))) {
      tile -= factors[which][i].in / 32 * (factors[which][i].out / 32);
      ++i;
    }
    const Factors& f = factors[which][i];
    const int row = tile / (f.out / 32) * 32, column = tile % (f.out / 32) * 32;
    MultiplyFactors(f, row, column, padded, results[2 * i] + which * f.in * f.out);
    if (row > 0) return;
    for (int c = column; c < column + 32; c += kTile) {
      __m512 sum = _mm512_setzero_ps();
      for (size_t r = 0; r < M; ++r)
        sum = _mm512_add_ps(sum, _mm512_loadu_ps(f.deltas + r * f.out + c));
      _mm512_storeu_ps(results[2 * i + 1] + which * f.out + c, sum);
    }
  });
  return ffi::Error::Success();
}

// Word i of JAX's generator: Threefry-2x32 of the counter (0, i), its two words combined.
inline __m512i Threefry(__m512i count, uint32_t k0, uint32_t k1) {
  const __m512i keys[3] = {_mm512_set1_epi32(k0), _mm512_set1_epi32(k1),
                           _mm512_set1_epi32(k0 ^ k1 ^ 0x1BD11BDAu)};
  __m512i x = keys[0], y = _mm512_add_epi32(count, keys[1]);
  const auto mix = [&](auto rotation) {
    x = _mm512_add_epi32(x, y);
    y = _mm512_xor_si512(_mm512_rol_epi32(y, rotation), x);
  };
  for (int round = 0; round < 5; ++round) {
    if (round % 2 == 0) {
      mix(std::integral_constant<int, 13>()), mix(std::integral_constant<int, 15>());
      mix(std::integral_constant<int, 26>()), mix(std::integral_constant<int, 6>());
    } else {
      mix(std::integral_constant<int, 17>()), mix(std::integral_constant<int, 29>());
      mix(std::integral_constant<int, 16>()), mix(std::integral_constant<int, 24>());
    }
    x = _mm512_add_epi32(x, keys[(round + 1) % 3]);
    y = _mm512_add_epi32(y, _mm512_add_epi32(keys[(round + 2) % 3], _mm512_set1_epi32(round + 1)));
  }
  return _mm512_xor_si512(x, y);
}

template <int kTerms>
inline __m512 Polynomial(__m512 x, const float (&c)[kTerms]) {  // highest power first
  __m512 p = _mm512_set1_ps(c[0]);
  for (int i = 1; i < kTerms; ++i) p = _mm512_fmadd_ps(p, x, _mm512_set1_ps(c[i]));
  return p;
}

inline __m512 Log(__m512 x) {  // for x > 0; minimax of log(1 + r) / r on [-1/4, 1/2]
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  const __mmask16 below = _mm512_cmp_ps_mask(m, one, _CMP_LT_OQ);
  const __m512 k = _mm512_getexp_ps(x), r = _mm512_sub_ps(m, one);
  const __m512 power = _mm512_mask_add_ps(k, below, k, one);
  const __m512 p = Polynomial(
      r, {5.560100935e-02f, -1.222571533e-01f, 1.501782687e-01f, -1.680919222e-01f,
          1.997231654e-01f, -2.499367656e-01f, 3.333369639e-01f, -5.000006219e-01f,
          9.999999900e-01f});
  return _mm512_fmadd_ps(power, _mm512_set1_ps(0.693147181f), _mm512_mul_ps(r, p));
}

// The inverse error function on (-1, 1), by the polynomials of Giles (2010), as XLA has it.
inline __m512 InverseErf(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 w = _mm512_sub_ps(
      _mm512_setzero_ps(), Log(_mm512_mul_ps(_mm512_sub_ps(one, x), _mm512_add_ps(one, x))));
  __m512 p = Polynomial(_mm512_sub_ps(w, _mm512_set1_ps(2.5f)),
                        {2.81022636e-08f, 3.43273939e-07f, -3.5233877e-06f, -4.39150654e-06f,
                         0.00021858087f, -0.00125372503f, -0.00417768164f, 0.246640727f,
                         1.50140941f});
  const __mmask16 tail = _mm512_cmp_ps_mask(w, _mm512_set1_ps(5.0f), _CMP_GE_OQ);
  if (tail) {
    const __m512 v = _mm512_sub_ps(_mm512_sqrt_ps(w), _mm512_set1_ps(3.0f));
    p = _mm512_mask_mov_ps(
        p, tail,
        Polynomial(v, {-0.000200214257f, 0.000100950558f, 0.00134934322f, -0.00367342844f,
                       0.00573950773f, -0.0076224613f, 0.00943887047f, 1.00167406f, 2.83297682f}));
  }
  return _mm512_mul_ps(p, x);
}

// normal(key [2]) and uniform(key [2]): the numbers of jax.random, the first up to rounding. [size]
template <bool kNormal>
ffi::Error Draw(Words key_, ffi::Result<Floats> out_) {
  const auto* key = key_.typed_data();
  float* out = out_->typed_data();
  const size_t calls = key_.element_count() / 2, size = out_->dimensions().back();
  const __m512 low = _mm512_set1_ps(-0.99999994f), range = _mm512_set1_ps(2.0f);
  __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (size_t call = 0; call < calls; ++call)
    for (size_t i = 0; i < size; i += kTile) {
      const __m512i bits = Threefry(_mm512_add_epi32(lane, _mm512_set1_epi32(i)), key[2 * call],
                                    key[2 * call + 1]);
      const __m512i mantissa =
          _mm512_or_si512(_mm512_srli_epi32(bits, 9), _mm512_set1_epi32(0x3F800000));
      __m512 x = _mm512_sub_ps(_mm512_castsi512_ps(mantissa), _mm512_set1_ps(1.0f));
      if constexpr (kNormal) {
        const __m512 u = _mm512_max_ps(low, _mm512_fmadd_ps(x, range, low));
        x = _mm512_mul_ps(InverseErf(u), _mm512_set1_ps(1.41421356f));
      }
      const __mmask16 inside = size - i >= kTile ? 0xFFFF : (1u << (size - i)) - 1;
      _mm512_mask_storeu_ps(out + call * size + i, inside, x);
    }
  return ffi::Error::Success();
}

}  // namespace

// Whether this process may use the tiles: the kernel of the system grants them on request.
extern "C" int rescore_tiles() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

// How many threads share a kernel's work; to be said before the first one runs.
extern "C" void rescore_threads(int count) { threads = std::max(count, 1); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_values, Values,
                              ffi::Ffi::Bind()
                                  .Attr<bool>("mish")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_reverse, Reverse,
                              ffi::Ffi::Bind()
                                  .Attr<bool>("mish")
                                  .Attr<float>("inner")
                                  .Attr<float>("outer")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_keep, Keep,
                              ffi::Ffi::Bind()
                                  .Attr<bool>("mish")
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .Ret<Floats>()
                                  .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_pull, Pull,
                              ffi::Ffi::Bind()
                                  .Attr<bool>("mish")
                                  .Attr<bool>("weights")
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .RemainingArgs()
                                  .Ret<Floats>()
                                  .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_uniform, Draw<false>,
                              ffi::Ffi::Bind().Arg<Words>().Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(rescore_normal, Draw<true>,
                              ffi::Ffi::Bind().Arg<Words>().Ret<Floats>());
