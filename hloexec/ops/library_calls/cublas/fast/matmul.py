"""The fast variant of cuBLAS's product of matrices."""

from __future__ import annotations

from hloexec.core.ir import ArrayShapes, Shape, TupleShape, flat_shapes
from hloexec.ops.contraction.fast.dot import AddedProduct, FastDot, MatrixProduct
from hloexec.ops.library_calls.configs import WithScratch, result_shapes
from hloexec.ops.library_calls.cublas.matmul import Epilogue, gemm_config
from hloexec.ops.registry import fast


@fast("__cublas$gemm", "__cublas$lt$matmul")
class FastGemm:
    """The product of two matrices that BLAS multiplies, plus a third or not."""

    @staticmethod
    def bind(
        *, backend_config: str | None, shape: Shape, operand_shapes: ArrayShapes
    ) -> MatrixProduct | AddedProduct | WithScratch | None:
        """The kernel for the product of two matrices that BLAS multiplies, plus a third or not; else None."""
        config = gemm_config(backend_config)
        if config.alpha != 1 or config.beta not in (0, 1) or config.epilogue != Epilogue():
            return None
        result = result_shapes(shape, "the gemm")[0]
        product = FastDot.bind(attributes=config.dimension_numbers, shape=result, operand_shapes=operand_shapes)
        if not isinstance(product, MatrixProduct):
            return None
        kernel = AddedProduct(product) if config.beta else product
        return WithScratch(kernel, flat_shapes(shape)[1:]) if isinstance(shape, TupleShape) else kernel
