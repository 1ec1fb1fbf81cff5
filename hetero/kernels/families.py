"""Which file has the kernels of which operators, so that a process loads those that its programs name and no others:
all of them take a quarter of a second."""

from __future__ import annotations

from functools import cache
from importlib import import_module

_FAMILIES: dict[str, dict[str, str]] = {
    "": {
        "activation": (
            "Celu Elu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus Softsign "
            "Swish ThresholdedRelu"
        ),
        "arithmetic": "Clip Div Mod Pow Where",
        "attention_standard": "Attention",
        "batch_norm": "BatchNormalization",
        "bit_cast": "BitCast",
        "cast": "Cast CastLike",
        "conv": "Conv",
        "conv_quantized": "ConvInteger QLinearConv",
        "conv_transpose": "ConvTranspose",
        "deform_conv": "DeformConv",
        "dropout": "Dropout",
        "einsum": "Einsum",
        "elementwise": (
            "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor "
            "Ceil Cos Cosh Equal Erf Exp Floor Greater GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Log "
            "Max Mean Min Mul Neg Not Or Reciprocal Round Sign Sin Sinh Sqrt Sub Sum Tan Tanh Xor"
        ),
        "experimental": "Affine Crop ImageScaler ParametricSoftplus Scale ScaledTanh",
        "gather": "Gather GatherElements GatherND",
        "gelu": "Gelu",
        "grid": "AffineGrid GridSample",
        "image": "ImageDecoder",
        "layout": "Expand Flatten Reshape Slice Split Squeeze Transpose Unsqueeze",
        "matmul": "Gemm MatMul",
        "matmul_quantized": "MatMulInteger QLinearMatMul",
        "norm": (
            "GroupNormalization InstanceNormalization LayerNormalization RMSNormalization "
            "SimplifiedLayerNormalization"
        ),
        "norm_axes": "LRN LpNormalization MeanVarianceNormalization",
        "pad": "Pad",
        "pool": "AveragePool LpPool MaxPool",
        "pool_global": "GlobalAveragePool GlobalLpPool GlobalMaxPool",
        "pool_index": "MaxUnpool",
        "quantize": "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
        "randomness": "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        "ranking": "ArgMax ArgMin TopK",
        "rearrange": "CenterCropPad Col2Im Concat DepthToSpace EyeLike ReverseSequence SpaceToDepth Tile Trilu",
        "reduction": (
            "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
            "ReduceSumSquare"
        ),
        "resize": "Resize Upsample",
        "rnn": "GRU LSTM RNN",
        "roi": "MaxRoiPool RoiAlign",
        "rotary_embedding": "RotaryEmbedding",
        "scan": "CumProd CumSum",
        "scatter": "Scatter ScatterElements ScatterND TensorScatter",
        "select": "Compress NonZero OneHot Unique",
        "sequence": (
            "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct "
            "SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence"
        ),
        "shape": "Constant ConstantOfShape Range Shape Size",
        "signal": "BlackmanWindow DFT Det HammingWindow HannWindow MelWeightMatrix STFT",
        "softmax": "Hardmax LogSoftmax Softmax",
        "suppression": "NonMaxSuppression",
        "text": "RegexFullMatch StringConcat StringNormalizer StringSplit",
        "text_ngrams": "TfIdfVectorizer",
    },
    "ai.onnx.ml": {
        "ml_features": "ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer Normalizer OneHotEncoder Scaler",
        "ml_labels": "CategoryMapper LabelEncoder",
        "ml_linear": "LinearClassifier LinearRegressor",
        "ml_maps": "CastMap DictVectorizer ZipMap",
        "ml_svm": "SVMClassifier SVMRegressor",
        "ml_trees": "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
    },
    "ai.onnx.preview.training": {
        "optimizers": "Adagrad Adam Momentum",
    },
    "com.microsoft": {
        "activation": "QuickGelu",
        "attention_grouped": "GroupQueryAttention",
        "attention_multihead": "DecoderMaskedMultiHeadAttention MultiHeadAttention",
        "attention_projected": "Attention",
        "attention_quantized": "QAttention",
        "contrib_alike": "ConvTransposeWithDynamicPads ExpandDims GatherND GridSample Pad Range Trilu Unique",
        "contrib_decoding": "DynamicTimeWarping NGramRepeatBlock",
        "contrib_matrix": "CDist Inverse UnfoldTensor",
        "conv_quantized": "QLinearConv",
        "crop_resize": "CropAndResize",
        "embed_quantized": "QEmbedLayerNormalization",
        "fused_contrib": "FusedConv FusedGemm",
        "gather_quantized": "GatherBlockQuantized",
        "gelu": "BiasGelu FastGelu Gelu",
        "gemm_quantized": "QGemm",
        "hashing": "MurmurHash3",
        "matmul": "FusedMatMul TransposeMatMul",
        "matmul_dynamic": "DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat",
        "matmul_nbits": "MatMulNBits",
        "moe": "MoE QMoE",
        "norm": "SimplifiedLayerNormalization",
        "norm_contrib": "EmbedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization",
        "qlinear_binary": "QLinearAdd QLinearMul",
        "qlinear_pool": "NhwcMaxPool QLinearAveragePool QLinearGlobalAveragePool QLinearReduceMean",
        "qlinear_softmax": "QLinearSoftmax",
        "qlinear_table": "QLinearConcat QLinearLeakyRelu QLinearSigmoid QLinearWhere",
        "quantize": "DequantizeLinear QuantizeLinear",
        "rnn_quantized": "DynamicQuantizeLSTM",
        "rotary_embedding": "MRotaryEmbedding RotaryEmbedding",
        "text_tokens": "Tokenizer",
    },
    "hetero": {
        "dot_general": "DotGeneral",
    },
    "hetero.internal": {
        "attention_repeated": "RepeatedAttention",
        "matmul_biased": "BiasedMatMul",
        "matmul_repeated": "RepeatedMatMul",
    },
}
"""Domain -> file -> its operators."""


@cache
def families() -> dict[tuple[str, str], tuple[str, ...]]:
    """(domain, operator) -> the files that register kernels for it."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for domain, files in _FAMILIES.items():
        for file, names in files.items():
            for name in names.split():
                found[domain, name] = (*found.get((domain, name), ()), file)
    return found


@cache
def load(domain: str, op_type: str) -> None:
    """Import what registers kernels for the operator."""
    for file in families().get((domain, op_type), ()):
        import_module(f"hetero.kernels.{file}")
