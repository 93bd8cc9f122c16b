#include <cmath>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/data_type.h"
#include "bench/cuda/subjects.h"
#include "model/cuda/layers.h"
#include "model/cuda/linear.h"

namespace specfabric::bench {
namespace {

using base::DataType;
using base::cuda::Device;
using base::cuda::DeviceBuffer;
using model::cuda::EnqueueAddAndNorm;
using model::cuda::GatedOutputs;
using model::cuda::Matrix;
using model::cuda::MatrixProducts;
using model::cuda::MatrixWeights;
using model::cuda::NormArgs;
using model::cuda::PackedElements;

constexpr int32_t kRows[] = {1, 8, 16, 32, 64, 512};
constexpr int32_t kMostRows = 512;

// A layer of a Llama: its four matrices, and room for 512 rows of what goes into them and comes
// out.
struct Layer {
  int32_t hidden = 0, features = 0, heads = 0;
  Matrix qkv, output, gate_up, down;
  uint16_t* inputs = nullptr;     // [rows][hidden]
  uint16_t* activated = nullptr;  // [rows][features]
  float* outputs = nullptr;
  std::unique_ptr<MatrixProducts> products;
};

Matrix Zeros(const Device& device, int32_t outputs, int32_t inputs) {
  auto weights = std::make_shared<MatrixWeights>();
  const auto elements = static_cast<size_t>(PackedElements(outputs, inputs));
  weights->memory = OrDie(DeviceBuffer::Create(elements * sizeof(uint16_t)));
  Check(device.Clear(weights->memory.As<void>(), weights->memory.bytes()));
  return {outputs, inputs, std::move(weights)};
}

std::shared_ptr<Layer> MakeLayer(const Device& device, const BenchShape& shape, Arena* arena) {
  auto layer = std::make_shared<Layer>();
  layer->heads = shape.heads * shape.head_dim;
  layer->hidden = layer->heads;
  layer->features = layer->hidden / 2 * 7;
  const int32_t kv = 2 * shape.kv_heads * shape.head_dim;
  layer->qkv = Zeros(device, layer->heads + kv, layer->hidden);
  layer->output = Zeros(device, layer->hidden, layer->heads);
  layer->gate_up = Zeros(device, GatedOutputs(layer->features), layer->hidden);
  layer->down = Zeros(device, layer->hidden, layer->features);
  layer->inputs = arena->New<uint16_t>(size_t(kMostRows) * layer->hidden);
  layer->activated = arena->New<uint16_t>(size_t(kMostRows) * layer->features);
  layer->outputs = arena->New<float>(size_t(kMostRows) * layer->qkv.outputs);
  Check(cudaMemset(layer->inputs, 0, size_t(kMostRows) * layer->hidden * sizeof(uint16_t)));
  layer->products = OrDie(MatrixProducts::Create(&device, /*batch_invariant=*/true));
  const Matrix* const matrices[] = {&layer->qkv, &layer->output, &layer->gate_up, &layer->down};
  Check(layer->products->Prepare(matrices, shape.trials));
  return layer;
}

void Multiply(const Layer& layer, int32_t rows) {
  constexpr auto kType = DataType::kBFloat16;
  const MatrixProducts& products = *layer.products;
  Check(products.Multiply(kType, layer.qkv, layer.inputs, rows, layer.outputs));
  Check(products.Multiply(kType, layer.output, layer.inputs, rows, layer.outputs));
  Check(products.MultiplyGated(kType, layer.gate_up, layer.inputs, rows,
                               {.features = layer.features, .out = layer.activated}));
  Check(products.Multiply(kType, layer.down, layer.activated, rows, layer.outputs));
}

Subject NormSubject(const Device& device, const BenchShape& shape, int32_t rows) {
  const auto arena = std::make_shared<Arena>();
  const int32_t hidden = shape.heads * shape.head_dim;
  const size_t count = size_t(rows) * hidden;
  NormArgs args = {.rows = rows, .hidden = hidden, .epsilon = 1e-5f};
  args.residual = arena->New(std::vector<float>(count, 1.0f));
  args.added = arena->New(std::vector<float>(count, 0.0f));
  args.weight = arena->New(std::vector<float>(hidden, 1.0f));
  args.normed = arena->New<uint16_t>(count);
  constexpr double kBytes = 3 * sizeof(float) + sizeof(uint16_t);  // of an element
  return {"residual and norm, " + std::to_string(rows) + " rows",
          kBytes * static_cast<double>(count), [=, stream = device.stream()] {
            (void)arena;
            Check(EnqueueAddAndNorm(args, stream));
          }};
}

}  // namespace

std::vector<Subject> ProductSubjects(const Device& device, const BenchShape& shape) {
  const auto arena = std::make_shared<Arena>();
  const std::shared_ptr<Layer> layer = MakeLayer(device, shape, arena.get());
  double bytes = 0;
  for (const Matrix* matrix : {&layer->qkv, &layer->output, &layer->gate_up, &layer->down}) {
    bytes += static_cast<double>(matrix->weights->memory.bytes());
  }
  std::vector<Subject> subjects;
  for (const int32_t rows : kRows) {
    subjects.push_back({"products of a layer, " + std::to_string(rows) + " rows", bytes, [=] {
                          (void)arena;
                          Multiply(*layer, rows);
                        }});
  }
  subjects.push_back(NormSubject(device, shape, 1));
  subjects.push_back(NormSubject(device, shape, kMostRows));
  return subjects;
}

}  // namespace specfabric::bench
