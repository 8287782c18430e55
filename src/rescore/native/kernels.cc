// Networks of plain layers and their gradients, on matrix or vector units of x86 processors.
//
// A block of rows passes through all layers, and through all steps of a reverse process, without
// leaving the cache.

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "product.h"
#include "team.h"
#include "vector.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Floats = ffi::Buffer<ffi::F32>;
using Words = ffi::Buffer<ffi::U32>;

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

struct Layer {
  int in, out;
  Parts weight;  // packed
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

size_t Ceil(size_t a, size_t b) { return (a + b - 1) / b; }

// A layer that is still to be packed, from weight [in, out] or its transpose.
struct Unpacked {
  const float* weight;
  int in, out;
  Parts packed;
  bool transposed;

  int strips() const { return (transposed ? out : in) / 32; }

  void PackStrip(int k) const {
    alignas(64) float tile[32 * kTile];
    const int tiles = (transposed ? in : out) / kTile;
    for (int n = 0; n < tiles; ++n) {
      const Parts to = packed.at((static_cast<size_t>(k) * tiles + n) * kPacked);
      if (transposed) {
        const float* at = weight + static_cast<size_t>(kTile * n) * out + 32 * k;
        Transpose(at, out, tile);
        Transpose(at + kTile, out, tile + kTile * kTile);
        PackTile(tile, kTile, to);
      } else {
        PackTile(weight + 32 * k * out + kTile * n, out, to);
      }
    }
  }
};

// Scratch of one block.
struct Work {
  Buffer<float> sums, parts;
};

Work& Scratch() {
  static thread_local Work work;
  return work;
}

// sums [rows, out] = x [rows, in] @ layer
void Multiply(const Layer& layer, Parts x, float* sums, int rows) {
  const size_t strip = static_cast<size_t>(layer.out) / kTile * kPacked;
  for (int c = 0; c < layer.out; c += 32)
    Product(x, layer.in, layer.weight.at(c / kTile * kPacked), strip, layer.in, sums + c, layer.out,
            rows);
}

// Activations of `size` sums, split into their two parts.
template <bool kMish>
void ActivateSplit(const float* sums, size_t size, Parts to) {
  for (size_t i = 0; i < size; i += kLanes) Split(Activate<kMish>(Load(sums + i)), to.at(i));
}

template <bool kMish>
void ActivateAll(float* sums, size_t size) {
  for (size_t i = 0; i < size; i += kLanes) Store(sums + i, Activate<kMish>(Load(sums + i)));
}

// The network on `rows` rows: share [row] is what the first layer has but for actions and `extra`.
// out [rows, out_dim]; the sums of layer i go to keep[i] too, if there is `keep`.
template <bool kMish>
void Forward(const Net& net, const float* const* share, const float* extra, const float* actions,
             int rows, float* out, float* const* keep = nullptr) {
  const int width = net.width, d = net.act_dim;
  int widest = width;
  for (const Layer& layer : net.hidden) widest = std::max(widest, layer.out);
  float* sums = Scratch().sums.room(kRows * widest);
  const Parts parts = PartsIn(Scratch().parts.room(kRows * widest), kRows * widest);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < width; c += kLanes) {
      Vec x = Load(share[r] + c);
      if (extra) x += Load(extra + c);
      for (int j = 0; j < d; ++j) x += actions[r * d + j] * Load(net.act_weight + j * width + c);
      Store(sums + r * width + c, x);
    }
  const int whole = Ceil(rows, kHigh) * kHigh;
  std::memset(sums + rows * width, 0, sizeof(float) * (whole - rows) * width);
  int size = width;
  for (const Layer& layer : net.hidden) {
    ActivateSplit<kMish>(sums, whole * size, parts);
    Multiply(layer, parts, sums, whole);
    size = layer.out;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < size; c += kLanes) {
        float* at = sums + r * size + c;
        Store(at, Load(at) + Load(layer.bias + c));
      }
    if (keep) std::memcpy(keep[&layer - net.hidden.data()], sums, sizeof(float) * rows * size);
  }
  ActivateAll<kMish>(sums, rows * size);
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < net.out_dim; ++j) {
      Vec sum = {};
      for (int c = 0; c < size; c += kLanes)
        sum += Load(sums + r * size + c) * Load(net.head + j * size + c);
      out[r * net.out_dim + j] = Sum(sum) + net.head_bias[j];
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
          size_t member, bool ensemble, float*& packed, float*& heads,
          std::vector<Unpacked>& unpacked) {
  Net net{width, act_dim, 0, act_weight, {}, nullptr, nullptr};
  for (size_t i = 0; i < rest.weights.size(); ++i) {
    const Operand &w = rest.weights[i], &b = rest.biases[i];
    const int in = w.shape[ensemble], out = w.shape[ensemble + 1];
    const float* weight = w.at(call) + member * in * out;
    const float* bias = b.at(call) + member * out;
    if (i + 1 < rest.weights.size()) {
      const Parts parts = PartsIn(packed, in * out);
      unpacked.push_back({weight, in, out, parts, false});
      net.hidden.push_back({in, out, parts, bias});
      packed += in * out;
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
void Rooms(const Rest& rest, bool ensemble, size_t nets, float*& packed, float*& heads) {
  thread_local Buffer<float> kept_packed, kept_heads;
  size_t size = 0;
  for (const Operand& w : rest.weights) size += w.shape[ensemble] * w.shape[ensemble + 1];
  packed = kept_packed.room(size * nets), heads = kept_heads.room(size * nets);
}

void PackAll(const std::vector<Unpacked>& layers) {
  std::vector<std::pair<const Unpacked*, int>> strips;
  for (const Unpacked& layer : layers)
    for (int k = 0; k < layer.strips(); ++k) strips.emplace_back(&layer, k);
  ForBlocks(strips.size(), [&](size_t i) { strips[i].first->PackStrip(strips[i].second); });
}

// The n networks of each call, packed; their memory is this thread's, until it packs again.
std::vector<Net> BuildAll(const Rest& rest, const Operand* act_weight, int act_dim, int width,
                          size_t calls, size_t n, bool ensemble) {
  float *packed, *heads;
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
  ForBlocks(calls * n * per_net, [&](size_t block) {
    const size_t net = block / per_net, first = block % per_net * kRows;
    const size_t call = net / n, member = net % n;
    const int rows = std::min<size_t>(kRows, M - first);
    const float* shares[kRows];
    for (int r = 0; r < rows; ++r)
      shares[r] = share.at(call) + (member * R + (first + r) % R) * width;
    const auto forward = mish ? Forward<true> : Forward<false>;
    forward(nets[net], shares, nullptr, actions.at(call) + first * d, rows, out + net * M + first,
            nullptr);
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
  ForBlocks(calls * per_call, [&](size_t block) {
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
      forward(nets[call], shares, times.at(call) + step * width, a, rows, eps.data(), nullptr);
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
  ForBlocks(nets.size() * per_net, [&](size_t block) {
    const size_t which = block / per_net, row = block % per_net * kRows;
    const int rows = std::min<size_t>(kRows, M - row);
    const Net& net = nets[which];
    std::vector<float*> keep;
    for (size_t i = 0; i < kept.size(); ++i)
      keep.push_back(kept[i] + (which * M + row) * net.hidden[i].out);
    const float* shares[kRows];
    for (int r = 0; r < rows; ++r) shares[r] = first.data + (which * M + row + r) * width;
    const auto forward = mish ? Forward<true> : Forward<false>;
    forward(net, shares, nullptr, nullptr, rows, out + (which * M + row) * net.out_dim,
            keep.data());
  });
  return ffi::Error::Success();
}

// What the gradient of one layer's weights needs: inputs transposed, derivatives by its sums packed.
// Rows are padded with zeros to whole blocks.
struct Factors {
  int in, out;
  Parts inputs;   // [in, padded]
  Parts outputs;  // [padded, out], packed
  float* deltas;  // [padded, out]: derivatives of the loss by the sums
};

// Derivatives of one block of rows by all sums, from the head to the first layer.
template <bool kMish>
void Backward(const Net& net, const std::vector<Layer>& transposed, const float* const* sums,
              const float* grad, int row, int rows, int padded, const std::vector<Factors>& factors,
              bool weights, float* first_grad) {
  const int depth = transposed.size();
  int widest = net.width;
  for (const Layer& layer : net.hidden) widest = std::max(widest, layer.out);
  float* delta = Scratch().sums.room(kRows * widest);
  const Parts parts = PartsIn(Scratch().parts.room(kRows * widest), kRows * widest);
  int size = depth ? net.hidden[depth - 1].out : net.width;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < size; c += kLanes) {
      Vec x = {};
      for (int j = 0; j < net.out_dim; ++j)
        x += grad[r * net.out_dim + j] * Load(net.head + j * size + c);
      Store(delta + r * size + c, x);
    }
  for (int i = depth; i >= 0; --i) {  // the sums of layer i; those of 0 are the first layer's
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < size; c += kLanes) {
        float* at = delta + r * size + c;
        Store(at, Load(at) * Slope<kMish>(Load(sums[i] + r * size + c)));
      }
    if (i == 0) break;
    std::memset(delta + rows * size, 0, sizeof(float) * (kRows - rows) * size);
    if (weights) {
      const Factors& f = factors[i - 1];
      std::memcpy(f.deltas + static_cast<size_t>(row) * size, delta, sizeof(float) * rows * size);
      for (int n = 0; n < size / kTile; ++n) {
        const size_t at = (static_cast<size_t>(row / 32) * (size / kTile) + n) * kPacked;
        PackTile(delta + kTile * n, size, f.outputs.at(at));
      }
      alignas(64) float tile[kTile * kTile], turned[kTile * kTile];
      for (int half = 0; half < kRows; half += kTile)
        for (int c = 0; c < f.in; c += kTile) {
          for (int r = 0; r < kTile; ++r)
            for (int j = 0; j < kTile; j += kLanes) {
              const float* from = sums[i - 1] + (half + r) * f.in + c + j;
              Store(tile + kTile * r + j, half + r < rows ? Activate<kMish>(Load(from)) : Vec{});
            }
          Transpose(tile, kTile, turned);
          for (int k = 0; k < kTile; ++k)
            for (int j = 0; j < kTile; j += kLanes) {
              const size_t at = static_cast<size_t>(c + k) * padded + row + half + j;
              Split(Load(turned + kTile * k + j), f.inputs.at(at));
            }
        }
    }
    for (int at = 0; at < kRows * size; at += kLanes) Split(Load(delta + at), parts.at(at));
    Multiply(transposed[i - 1], parts, delta, rows);
    size = transposed[i - 1].out;
  }
  for (int r = 0; r < rows; ++r)
    std::memcpy(first_grad + static_cast<size_t>(r) * size, delta + r * size, sizeof(float) * size);
}

// Gradients of the head [size, out_dim] and its bias.
template <bool kMish>
void BackwardHead(const float* sums, const float* grad, int M, int size, int out_dim,
                  float* transposed, float* weight, float* bias) {
  std::memset(transposed, 0, sizeof(float) * size * out_dim);
  std::memset(bias, 0, sizeof(float) * out_dim);
  for (int r = 0; r < M; ++r) {
    for (int j = 0; j < out_dim; ++j) bias[j] += grad[r * out_dim + j];
    for (int c = 0; c < size; c += kLanes) {
      const Vec h = Activate<kMish>(Load(sums + static_cast<size_t>(r) * size + c));
      for (int j = 0; j < out_dim; ++j) {
        float* at = transposed + j * size + c;
        Store(at, Load(at) + grad[r * out_dim + j] * h);
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
  thread_local Buffer<float> kept_parts, kept_floats;
  size_t parts = 0, floats = 0;
  for (size_t i = 0; i < depth; ++i) {
    const size_t in = rest.weights[i].shape[1], out = rest.weights[i].shape[2];
    parts += in * out + (weights ? padded * (in + out) : 0);
    floats += padded * out;
  }
  const size_t last = rest.weights[depth].shape[1], out_dim = rest.weights[depth].shape[2];
  float* part_room = kept_parts.room(count * parts);
  float* float_room = kept_floats.room(count * (floats + 2 * last * out_dim));
  std::vector<Net> nets(count);
  std::vector<std::vector<Layer>> transposed(count);
  std::vector<std::vector<Factors>> factors(count);
  std::vector<Unpacked> unpacked;
  const auto take = [](float*& room, size_t size) {
    room += size;
    return room - size;
  };
  const auto take_parts = [&](size_t size) { return PartsIn(take(part_room, size), size); };
  for (size_t which = 0; which < count; ++which) {
    Net& net = nets[which];
    const size_t call = which / n, member = which % n;
    net.width = width, net.out_dim = out_dim;
    for (size_t i = 0; i < depth; ++i) {
      const size_t in = rest.weights[i].shape[1], out = rest.weights[i].shape[2];
      const float* weight = rest.weights[i].at(call) + member * in * out;
      const Parts turned = take_parts(in * out);
      net.hidden.push_back({int(in), int(out), {}, nullptr});
      unpacked.push_back({weight, int(in), int(out), turned, true});
      transposed[which].push_back({int(out), int(in), turned, nullptr});
      if (!weights) continue;
      Factors f;
      f.in = in, f.out = out;
      f.inputs = take_parts(in * padded), f.outputs = take_parts(out * padded);
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
  ForBlocks(count * per_net, [&](size_t block) {
    const size_t which = block / per_net, row = block % per_net * kRows;
    const int rows = std::min<size_t>(kRows, M - row);
    std::vector<const float*> own = {sums[0] + (which * M + row) * width};
    for (size_t i = 0; i < depth; ++i)
      own.push_back(sums[i + 1] + (which * M + row) * nets[which].hidden[i].out);
    const auto backward = mish ? Backward<true> : Backward<false>;
    backward(nets[which], transposed[which], own.data(), grad.data + (which * M + row) * out_dim,
             row, rows, padded, factors[which], weights,
             first_grad + (which * M + row) * width);
  });
  if (!weights) return ffi::Error::Success();
  size_t tiles = 0;  // of a network's weights
  for (size_t i = 0; i < depth; ++i)
    tiles += rest.weights[i].shape[1] / 32 * (rest.weights[i].shape[2] / 32);
  ForBlocks(count + count * tiles, [&](size_t block) {
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
    Product(f.inputs.at(row * padded), padded, f.outputs.at(column / kTile * kPacked),
            static_cast<size_t>(f.out) / kTile * kPacked, padded,
            results[2 * i] + (which * f.in + row) * f.out + column, f.out);
    if (row > 0) return;
    for (int c = column; c < column + 32; c += kLanes) {
      Vec sum = {};
      for (size_t r = 0; r < M; ++r) sum += Load(f.deltas + r * f.out + c);
      Store(results[2 * i + 1] + which * f.out + c, sum);
    }
  });
  return ffi::Error::Success();
}

// normal(key [2]) and uniform(key [2]): the numbers of jax.random, the first up to rounding. [size]
template <bool kNormal>
ffi::Error Draw(Words key_, ffi::Result<Floats> out_) {
  const auto* key = key_.typed_data();
  float* out = out_->typed_data();
  const size_t calls = key_.element_count() / 2, size = out_->dimensions().back();
  Bits lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  for (size_t call = 0; call < calls; ++call)
    for (size_t i = 0; i < size; i += kLanes) {
      const Bits bits = Threefry(lane + static_cast<uint32_t>(i), key[2 * call], key[2 * call + 1]);
      Vec x = reinterpret_cast<Vec>((bits >> 9) | 0x3F800000u) - 1.0f;
      if constexpr (kNormal) {
        constexpr float kLow = -0.99999994f;
        const Vec u = x * 2.0f + kLow;
        x = InverseErf(u < kLow ? All(kLow) : u) * 1.41421356f;
      }
      std::memcpy(out + call * size + i, &x, sizeof(float) * std::min<size_t>(kLanes, size - i));
    }
  return ffi::Error::Success();
}

}  // namespace

// Whether this process may use the units: the kernel of the system grants tiles on request.
extern "C" int rescore_units() {
#ifdef __AMX_BF16__
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return 1;
#endif
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
