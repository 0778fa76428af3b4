"""What pyproject.toml can't say: the C++ extension, and the PyTorch minor version that it ties the package to."""

import os
from pathlib import Path

from setuptools import setup

# An earlier build of this very package may be installed and half replaced: PyTorch must not load it now.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch  # noqa: E402
from torch.utils.cpp_extension import BuildExtension, CppExtension  # noqa: E402

HERE = Path(__file__).parent
EXTENSION = "torch_tpu._C"
TORCH_MINOR = ".".join(torch.__version__.split(".")[:2])
SUPPORTED = ("2.13", "2.14", "2.15")

if TORCH_MINOR not in SUPPORTED:
    raise SystemExit(f"torch_tpu is built against PyTorch {', '.join(SUPPORTED)}; PyTorch {torch.__version__} is installed here")


class Build(BuildExtension):
    """Builds the extension, and writes beside it which PyTorch it was built against, for the check at import."""

    def run(self) -> None:
        super().run()
        record = Path(self.get_ext_fullpath(EXTENSION)).with_name("_built_with.py")
        docstring = '"""Written by setup.py: the PyTorch that torch_tpu._C was built against."""'
        record.write_text(f'{docstring}\n\ntorch = "{torch.__version__}"\n')


def sources() -> list[str]:
    return sorted(str(path.relative_to(HERE)) for path in HERE.glob("csrc/*.cpp"))


setup(
    ext_modules=[
        CppExtension(
            EXTENSION,
            sources(),
            include_dirs=[str(HERE / "csrc")],
            depends=sorted(str(path.relative_to(HERE)) for path in HERE.glob("csrc/*.h")),
            extra_compile_args=["-O2", "-g0", "-std=c++20", "-fvisibility=hidden"],
        )
    ],
    cmdclass={"build_ext": Build},
    install_requires=[
        f"torch=={TORCH_MINOR}.*",
        "jax>=0.10,<0.12",
        "jaxlib>=0.10,<0.12",
        "numpy>=2",
        "ml_dtypes>=0.5",
    ],
    # Wheels of one version for several PyTorch minors are told apart by a local version: 0.3.0+torch2.13.
    options={"egg_info": {"tag_build": f"+torch{TORCH_MINOR}"}} if os.environ.get("TORCH_TPU_WHEEL_FOR_RELEASE") == "1" else {},
)
