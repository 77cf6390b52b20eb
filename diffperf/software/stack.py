"""The software that drives a system: launches, collectives, overlap, kernels, and the memory of buffers."""

from typing import Any

from diffperf.quantity import Declared, Label, Scalar, Weights, label, quantity, switch
from diffperf.software.collective_library import CollectiveLibrary

# Where the numbers of a stack may come from.
MEASURED, ESTIMATES = "measured runs", "estimates"
# Kernels of a forward pass of a layer that Megatron-LM launches with fusions and tensor parallelism, as its
# transformer.py runs them (`diffperf.estimate.stage_time` lists them).
KERNELS_OF_PASS = 16.0


class UnpaddedLogits(Declared):
    """Logits of a vocabulary that training software multiplies as it is; others pad it.

    "Tensor Cores can be used most efficiently when dimensions are multiples of 16 bytes" (NVIDIA, Matrix
    Multiplication Background User's Guide, Table 1).
    """

    alignment: Scalar = quantity(
        "byte",
        "multiple of the bytes of a row of a device's logits for which the products of the vocabulary "
        "projection run at full efficiency",
        bounds=(1, 256),
        integer=True,
    )
    efficiency: Scalar = quantity(
        "",
        "efficiency of the vocabulary projection's products where rows of logits are not aligned, over that "
        "where they are",
        bounds=(0.01, 1),
    )


class Stack(Declared):
    """The software that drives a system, compared with Megatron-LM where figures are ratios."""

    name: Label = label("identifier of the software stack, such as megatron-lm")
    kernel_overhead: Scalar = quantity(
        "s", "time of a kernel that no other kernel hides: launch, ramp, drain", bounds=(1e-8, 1e-3)
    )
    collective_overhead: Scalar = quantity(
        "s", "fixed time of a collective in the software stack: launch, ramp", bounds=(1e-8, 1e-2)
    )
    collectives: CollectiveLibrary
    memory_reserve: Scalar = quantity(
        "byte", "device memory that the runtime and the libraries take", bounds=(1e3, 1e11)
    )

    # The host: a device waits where its queue of kernels runs empty. Bounds exclude 0 (the fields are
    # searched by their logarithm), so the default of 1 ns stands for none.
    host_launch: Scalar = quantity(
        "s",
        "time of the host to launch the kernels of one pass of a layer in training, for which devices wait",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    head_launch: Scalar = quantity(
        "s",
        "time of the host to launch the kernels of embeddings, vocabulary projection and loss of a "
        "micro-batch in training, for which devices wait",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    rank_stall: Scalar = quantity(
        "s",
        "host launch time that each tensor-parallel rank adds where neighbouring pipeline stages lie in "
        "different domains of the innermost network tier",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    group_stall: Scalar = quantity(
        "s",
        "time for which each tensor-parallel rank stalls every pass of a layer in training where these ranks "
        "lie in different domains of the innermost network tier",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    message_stall: Scalar = quantity(
        "s",
        "time for which every message between two pipeline stages in training stalls both, where the "
        "pipeline lies in several domains of the innermost network tier",
        bounds=(1e-15, 10),
        default=1e-15,
    )
    routing_wait: Scalar = quantity(
        "s",
        "wait of a forward pass of an expert layer until the host knows how many tokens every expert gets",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    expert_launch: Scalar = quantity(
        "s",
        "time of the host to launch the kernel of one expert, where every expert has a kernel of its own",
        bounds=(1e-9, 1e-2),
        default=1e-9,
    )
    step_overhead: Scalar = quantity(
        "s",
        "time of a training step outside its passes and its optimizer: data, clipping, logging",
        bounds=(1e-9, 1e2),
        default=1e-9,
    )

    # A serving engine: its steps, and what delays requests and tokens outside them.
    engine_step: Scalar = quantity(
        "s",
        "time of a step of a serving engine for which devices wait for the host: scheduling, sampling",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    engine_sequence: Scalar = quantity(
        "s",
        "time of a step of a serving engine, for which devices wait, that each sequence of the batch adds",
        bounds=(1e-9, 1e-2),
        default=1e-9,
    )
    draft_step: Scalar = quantity(
        "s",
        "time that verifying drafted tokens adds to a step of a serving engine, for which devices wait",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    draft_sequence: Scalar = quantity(
        "s",
        "time that verifying the drafted tokens of one sequence adds to a step, for which devices wait",
        bounds=(1e-9, 1e-2),
        default=1e-9,
    )
    prompt_launch: Scalar = quantity(
        "s",
        "time of the host to launch the kernels of a layer in a step of a serving engine that has prompts",
        bounds=(1e-9, 1e-1),
        default=1e-9,
    )
    request_overhead: Scalar = quantity(
        "s",
        "time of a request in a serving system outside its engine: network, tokenization",
        bounds=(1e-9, 1e2),
        default=1e-9,
    )
    handover: Scalar = quantity(
        "s",
        "time for which an engine that only prefills is busy with a request beside its passes, to begin and "
        "follow the transfer of its KV cache",
        bounds=(1e-9, 1e1),
        default=1e-9,
    )
    poll_interval: Scalar = quantity(
        "",
        "decode steps of a serving engine from one look for new requests to the next",
        bounds=(1, 1e3),
        default=1,
    )
    scheduled_steps: Scalar = quantity(
        "",
        "steps that a serving engine has already begun or scheduled when a client's next request arrives",
        bounds=(1e-6, 1e2),
        default=1e-6,
    )
    start_steps: Scalar = quantity(
        "",
        "steps by which first tokens are later, beyond the line of prompts, where all clients of a serving "
        "engine, one that both prefills and decodes, begin at once",
        bounds=(1e-6, 1e4),
        default=1e-6,
    )
    stream_interval: Scalar = quantity(
        "",
        "decode steps of a serving engine whose tokens reach the client together",
        bounds=(1, 1e3),
        default=1,
    )

    # Communication.
    network_efficiency: Scalar = quantity(
        "",
        "share of the efficiency of the outer network tiers that training runs reach: congestion, jitter",
        bounds=(0.01, 2.0),
        default=1.0,
    )
    collective_units: Scalar = quantity(
        "",
        "compute units that collectives occupy while they run under computation",
        bounds=(1e-3, 1e3),
        default=1e-3,
    )
    exchange_units: Scalar = quantity(
        "",
        "compute units that stay reserved for the dispatch to experts where it runs under computation",
        bounds=(0, 1e3),
        default=0.0,
    )
    routed_once_per_domain: Scalar = quantity(
        "",
        "share of token dispatches that send a token once to a network domain, and once to the ranks that "
        "share its experts, for all of its experts there",
        bounds=(0, 1),
        default=0.0,
    )

    whole_gradients: Weights = switch(
        "training that shards the optimizer state alone (ZeRO stage 1) all-reduces whole gradients after the "
        "backward pass and gathers weights after the update, in place of a reduce-scatter and a gathering "
        "that passes hide",
        default=False,
    )

    # Measured runs rarely say which of these options they used: tables of measurements ask the stack.
    half_gradients: Weights = switch(
        "whether measured runs of the stack accumulate and reduce gradients in the format of products rather "
        "than in fp32",
        default=False,
    )
    causal_flops: Weights = switch(
        "whether the model FLOP/s of measured runs of the stack count attention as far as a causal mask "
        "leaves it",
        default=False,
    )
    recomputes_functions: Weights = switch(
        "whether selective recomputation in measured runs of the stack is that of norms and of experts' "
        "activation functions, where FlashAttention leaves nothing of the attention core to recompute",
        default=False,
    )
    balanced_head: Weights = switch(
        "whether measured runs of the stack have fewer layers in the last pipeline stage, to make up for the "
        "vocabulary projection",
        default=False,
    )
    uneven_stages: Weights = switch(
        "whether measured runs of the stack have embeddings in place of layers, or fewer layers in the last "
        "pipeline stage, where the stages do not divide the layers",
        default=False,
    )
    tensor_overlap: Weights = switch(
        "whether measured runs of the stack hide tensor-parallel communication behind matrix products",
        default=False,
    )
    expert_overlap: Weights = switch(
        "whether measured runs of the stack hide the dispatch of tokens to experts behind other work",
        default=False,
    )
    gradient_overlap: Weights = switch(
        "whether measured runs of the stack hide the reduction of gradients behind the backward pass",
        default=True,
    )

    # Memory.
    kept_activations: Scalar = quantity(
        "",
        "activations that a layer keeps for the backward pass, over those that Megatron-LM keeps",
        bounds=(0.1, 10),
        default=1.0,
    )
    gathered_inputs: Scalar = quantity(
        "",
        "share of the inputs of column-parallel layers kept as gathered, not split along the sequence",
        bounds=(0, 1),
        default=0.0,
    )
    gradient_buffers: Scalar = quantity(
        "byte",
        "bytes of gradients kept per parameter beside the accumulated gradients",
        bounds=(0, 16),
        default=0.0,
    )
    optimizer_buffers: Scalar = quantity(
        "byte",
        "bytes kept per owned parameter in training beside the optimizer state",
        bounds=(0, 16),
        default=0.0,
    )
    training_buffers: Scalar = quantity(
        "byte", "memory of the buckets and workspaces of a training run", bounds=(0, 1e11), default=0.0
    )
    fragmentation: Scalar = quantity(
        "",
        "memory that the allocator takes from the device, over the memory of the allocated tensors",
        bounds=(1, 3),
        default=1.0,
    )

    pass_tokens: Scalar = quantity(
        "",
        "most tokens of prompts in one pass of a serving engine, whose activations lie in memory at once",
        bounds=(1, 1e7),
        # TensorRT-LLM's max_num_tokens and vLLM's max_num_batched_tokens on large GPUs.
        default=8192,
        integer=True,
    )
    submitted_tokens: Scalar = quantity(
        "",
        "most tokens of prompts that an engine hands to a pipeline before it waits until all of these tokens "
        "have left the pipeline",
        bounds=(1, 1e12),
        default=1e12,  # more than any batch of prompts
        integer=True,
    )
    cache_block: Scalar = quantity(
        "",
        "tokens of a block of the paged KV cache, which a sequence takes whole",
        bounds=(1, 4096),
        default=16,  # vLLM's block size (arXiv 2309.06180 §4); TensorRT-LLM's is 32 or 64
        integer=True,
    )

    queues_sequences: Weights = switch(
        "sequences wait for room in the KV cache, in place of running out of memory, in measured runs",
        default=False,
    )

    # Kernels.
    exposed_start: Scalar = quantity(
        "",
        "share of the latency of a kernel's start that does not overlap with the end of the kernel before it",
        # Less than 1 with programmatic dependent launch (CUDA C++ Programming Guide).
        bounds=(0.01, 1),
        default=1.0,
    )
    elementwise_traffic: Scalar = quantity(
        "",
        "bytes that the element-wise kernels of a layer move, over the bytes with Megatron-LM's fusions",
        bounds=(0.1, 20),
        default=1.0,
    )
    elementwise_kernels: Scalar = quantity(
        "",
        "number of element-wise kernels of a layer, over the number with Megatron-LM's fusions",
        bounds=(0.1, 20),
        default=1.0,
    )
    fused_softmax_batches: Scalar = quantity(
        "",
        "multiple of the sequences times heads of a device for which one kernel scales, masks and takes the "
        "softmax of stored scores in training, where others take five; 0 for one kernel in any case",
        bounds=(0, 64),
        default=0.0,
        integer=True,
    )
    loss_traffic: Scalar = quantity(
        "byte",
        "bytes that the loss and its gradient move to and from memory for a logit in training",
        bounds=(2, 1e3),
        # A cast from 16 bits to fp32 (2 + 4), the maximum (4), exponential and sum (4 + 4), and the gradient
        # (4 + 2).
        default=24.0,
    )
    head_alignment: Scalar = quantity(
        "byte",
        "multiple of the bytes of a head's query for which matrix units take the products of stored scores "
        "in training, where vector units take the others; 0 for matrix units in any case",
        bounds=(0, 256),
        default=0.0,
        integer=True,
    )
    unpadded_logits: UnpaddedLogits | None = None
    routing_kernels: Scalar = quantity(
        "",
        "kernels that sort the tokens of an expert layer by experts, and back, in inference",
        bounds=(0.1, 100),
        default=2.0,  # as in training: one in each direction
    )
    repeats_kv_heads: Weights = switch(
        "inference without grouped-query attention: key and value heads are repeated for all query heads, in "
        "the weights and in the cache",
        default=False,
    )
    separate_experts: Weights = switch(
        "training multiplies the tokens of every expert in a kernel of its own, in place of one for all",
        default=False,
    )
    separate_expert_biases: Weights = switch(
        "training adds the biases of the experts' second product by kernels of their own for every expert",
        default=False,
    )
    separate_clamps: Weights = switch(
        "training clamps the inputs of the experts' activation function by kernels of their own",
        default=False,
    )
    sorts_local_experts: Weights = switch(
        "training sorts the tokens that a device has got from all ranks by its own experts, and puts outputs "
        "back in the order of ranks, by kernels of their own, where a device has several experts",
        default=False,
    )
    separate_scaled_rotary: Weights = switch(
        "training rotates queries and keys by kernels that are not fused where rotary embeddings are scaled",
        default=False,
    )
    reads_idle_experts: Weights = switch(
        "grouped products in fp8 read the weights of experts without tokens as well", default=False
    )
    narrows_expert_operands: Weights = switch(
        "experts stored in four-bit floating point are multiplied by activations in 8 bits, where the "
        "strategy has them in 16",
        default=False,
    )
    rows_of_all_experts: Weights = switch(
        "kernels of inference write, activate and add up a row of zeros for every expert that a token visits "
        "on another rank of the tensor-parallel group",
        default=False,
    )
    untuned_rows: Scalar = quantity(
        "",
        "rows of the smallest tiles in which kernels of inference multiply the tokens of an expert, where "
        "experts are spread over devices and the shapes of tiles are not tuned: in fp8, and in 16 bits for "
        "more tokens than a device has experts",
        bounds=(16, 256),  # 16 rows are the smallest tile of all products
        default=16,
        integer=True,
    )
    untuned_efficiency: Scalar = quantity(
        "",
        "efficiency of kernels of inference that multiply the tokens of an expert in tiles whose shapes are "
        "not tuned, over that in tuned tiles",
        bounds=(0.01, 1),
        default=1.0,
    )
    separate_conversion: Scalar = quantity(
        "",
        "share of the conversions of activations to narrow formats that take kernels of their own",
        bounds=(1e-3, 1),
        default=1.0,
    )
    matrix_vector: Weights = switch(
        "kernels of their own for products with few rows, which multiply on the vector units", default=False
    )
    unpacking_operations: Scalar = quantity(
        "",
        "vector operations in which GEMM kernels convert one stored weight to the format of the operands",
        bounds=(0.1, 100),
        # An estimate: Marlin (arXiv 2408.11743 §3.4) converts two 4-bit weights by about four instructions.
        default=2.0,
    )
    unpacking_efficiency: Scalar = quantity(
        "",
        "efficiency of GEMM kernels that convert stored weights, over that of kernels that need not",
        bounds=(0.05, 2.0),
        default=1.0,
    )
    matrix_efficiency: Scalar = quantity(
        "",
        "share of the accelerator's GEMM efficiency that the stack reaches in runs that heat the device up",
        bounds=(0.05, 2.0),
        default=1.0,
    )
    narrow_efficiency: Scalar = quantity(
        "",
        "share of the rate of products, in formats of under 16 bits, that the stack's GEMM kernels reach, "
        "beside its share in all formats",
        bounds=(0.05, 2.0),
        default=1.0,
    )
    product_latency: Scalar = quantity(
        "",
        "latency of the main loop of the stack's GEMM kernels over that of the kernels on which the "
        "accelerator's k_latency was measured",
        bounds=(0.02, 10),
        default=1.0,
    )
    attention_efficiency: Scalar = quantity(
        "",
        "share of the accelerator's fused-attention efficiency that the stack's kernels reach",
        bounds=(0.05, 2),
        default=1.0,
    )
    grouped_heads: Scalar = quantity(
        "",
        "largest group of query heads of a KV head that generation kernels process together (latent "
        "attention has kernels of its own)",
        bounds=(1, 1e4),
        default=128,
        integer=True,
    )

    basis: Label = label(
        'origin of the numbers of the stack: "measured runs" that they were fitted to, or "estimates"',
        default=ESTIMATES,
    )

    @property
    def is_measured(self) -> bool:
        """Whether the numbers of the stack were fitted to measured runs of the stack."""
        return str(self.basis) == MEASURED

    @classmethod
    def inconsistency(cls, values: dict[str, Any]) -> tuple[str, str, str, str] | None:
        """The inconsistency of the stack's values with each other: (key, found, expected, remedy), None for
        none.
        """
        if (basis := str(values.get("basis", ESTIMATES))) in (MEASURED, ESTIMATES):
            return None
        expected = f'"{MEASURED}" or "{ESTIMATES}"'
        return "basis", f'"{basis}"', expected, f'leave the key out, which means "{ESTIMATES}"'

    @classmethod
    def complete(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The fields that a stack's file gives.

        The key `measured` is no field: it says what tables of measurements call the software, for
        `diffperf.explore.measured.names`. Nor is `training`: it says how the software trains, for
        `diffperf.explore.plan.known_strategy`. Nor is `features`: it says how the software works, for
        `diffperf.load.features`.
        """
        return {key: value for key, value in table.items() if key not in ("measured", "training", "features")}
