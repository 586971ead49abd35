"""Every name of torch that lowtide uses and torch does not document, in one table, with the releases that have it.

They are used in `lowtide.device` alone, and in a few files of `lowtide.ops`, which is below it; a test holds both to
that. A method is named with its class, without the module. `lowtide.device.releases` looks for those that are needed
for a capture before the first one, so that a release that has moved one is met by a sentence instead of a traceback.
Functions of torch's surface are here where lowtide puts others in their place.

| name | seen in torch | needed for |
| --- | --- | --- |
| `torch._dynamo.backends.common.aot_autograd` | 2.11 to 2.15 | capture: joint graph through `partition_fn` |
| `_boxed_call` | 2.11 to 2.15 | capture: compiled code may empty the list of its arguments |
| `TracingContext.try_get` | 2.11 to 2.15 | capture: metadata of the forward; captured again |
| `TracingContext.get` | 2.11 to 2.15 | the same |
| `torch._guards.tracing` | 2.11 to 2.15 | the same |
| `fw_metadata.bw_donated_idxs` | 2.11 to 2.15 | capture: slots must not be donated, or `retain_graph` breaks |
| `fw_metadata.mutated_inp_runtime_indices` | 2.11 to 2.15 | capture: which gradient becomes which tangent |
| `fw_metadata.output_info` | 2.11 to 2.15 | the same |
| `fw_metadata.static_input_indices` | 2.11 to 2.15 | capture: which inputs are parameters and buffers |
| `fw_metadata.subclass_tangent_meta` | 2.11 to 2.15 | capture: gradients are not copied unseen |
| `torch._functorch.config.backward_pass_autocast` | 2.11 to 2.15 | capture: the backward is traced as eager runs it |
| `graph_capture_wrappers.maybe_to_fresh_input` | 2.11 to 2.15 | capture: copies of arguments keep gaps |
| `torch._inductor.config.fallback_random` | 2.11 to 2.15 | capture: unused random numbers are drawn all the same |
| `torch._inductor.config.patch` | 2.11 to 2.15 | capture: such options for a while |
| `torch._functorch.config.patch` | 2.11 to 2.15 | the same |
| `torch._dynamo.config.patch` | 2.11 to 2.15 | the same |
| `torch.clear_autocast_cache` | 2.11 to 2.15 | capture: replaced: when autocast forgets what it has cast |
| `torch.set_autocast_cache_enabled` | 2.11 to 2.15 | the same: whether it keeps it |
| `proxy_tensor.disable_autocast_cache` | 2.11 to 2.15 | the same |
| `torch._functorch._aot_autograd.collect_metadata_analysis` | 2.11 to 2.15 | the same |
| `torch._C._autograd._get_sequence_nr` | 2.11 to 2.15 | the same: which casts were before and after |
| `torch.autograd.grad` | 2.11 to 2.15 | capture: replaced: gradients are traced as they come |
| `CompiledFunctionBackward` | 2.11 to 2.15 | capture: the node of a captured graph; no zeros for absent gradients |
| `Node._sequence_nr` | 2.11 to 2.15 | the same |
| `OpOverload` | 2.11 to 2.15 | capture: what a node of a graph calls |
| `OpOverloadPacket` | 2.11 to 2.15 | the same |
| `HigherOrderOperator` | 2.11 to 2.15 | the same |
| `OpOverload._schema` | 2.11 to 2.15 | capture, profile, ops: arguments, results, what is overwritten |
| `OpOverload.py_kernels` | 2.11 to 2.15 | capture: composites become the operators of eager |
| `OpOverload._dispatch_cache` | 2.11 to 2.15 | the same |
| `OpOverload._op_dk` | 2.11 to 2.15 | capture: the kernel that eager would run is run |
| `torch._C.DispatchKey` | 2.11 to 2.15 | the same |
| `torch._C._dispatch_has_kernel_for_dispatch_key` | 2.11 to 2.15 | capture: which operators eager composes of others |
| `torch._C._AutoDispatchBelowAutograd` | 2.11 to 2.15 | capture: a recurrent layer's kernel makes its workspace |
| `torch._decomp.decompositions.should_fold` | 2.11 to 2.15 | capture: products of batches are eager's |
| `aten._to_copy` | 2.11 to 2.15 | capture, profile: operators that are looked for in graphs, or put there |
| `aten._local_scalar_dense` | 2.11 to 2.15 | the same |
| `aten._grouped_mm` | 2.11 to 2.15 | capture: operators that torch's capture refuses or rewrites |
| `torch._foreach_lerp_` | 2.11 to 2.15 | the same |
| `FunctionalTensorMode.__torch_dispatch__` | 2.11 to 2.15 | capture: slices keep their gaps |
| `FunctionalTensor` | 2.11 to 2.15 | the same |
| `torch._functionalize_sync` | 2.11 to 2.15 | the same: what a functional tensor holds |
| `torch._from_functional_tensor` | 2.11 to 2.15 | the same |
| `torch._functionalize_replace` | 2.11 to 2.15 | the same: what it is to hold |
| `torch._functionalize_commit_update` | 2.11 to 2.15 | the same |
| `FakeTensorMode` | 2.11 to 2.15 | profile: an optimizer's step that costs no bytes |
| `FakeTensor` | 2.11 to 2.15 | the same |
| `FakeTensorMode.dispatch` | 2.11 to 2.15 | capture: results lie in memory as real operators lay them out |
| `FakeTensorMode._dispatch_impl` | 2.11 to 2.15 | capture: geometries that torch refuses to foretell are learnt |
| `DataDependentOutputException` | 2.11 to 2.15 | profile, capture: what a fake tensor cannot answer |
| `DynamicOutputShapeException` | 2.11 to 2.15 | the same |
| `UnsupportedFakeTensorException` | 2.11 to 2.15 | the same |
| `UnsupportedOperatorException` | 2.11 to 2.15 | the same |
| `MetadataMismatchError` | 2.11 to 2.15 | the same |
| `torch._guards.detect_fake_mode` | 2.11 to 2.15 | capture: one more fake tensor of the same mode |
| `is_traceable_wrapper_subclass` | 2.11 to 2.15 | session: tensors made of others are refused |
| `TorchDispatchMode` | 2.11 to 2.15 | profile, verify: operators are seen as they run |
| `_disable_current_modes` | 2.11 to 2.15 | everywhere: what lowtide computes for itself is seen by no mode |
| `torch._C._pop_torch_function_stack` | 2.11 to 2.15 | session: capture inside `torch.device("meta")` |
| `torch._C._len_torch_function_stack` | 2.11 to 2.15 | the same |
| `torch._C._push_on_torch_function_stack` | 2.11 to 2.15 | the same |
| `torch.utils._pytree.tree_leaves` | 2.11 to 2.15 | everywhere: tensors in nested containers |
| `torch.utils._pytree.tree_flatten` | 2.11 to 2.15 | the same |
| `torch.utils._pytree.tree_unflatten` | 2.11 to 2.15 | the same |
| `torch.utils._pytree.TreeSpec` | 2.11 to 2.15 | the same |
| `torch.utils._pytree.tree_map` | 2.11 to 2.15 | the same |
| `torch.utils._pytree.tree_map_only` | 2.11 to 2.15 | the same |
| `torch.utils._pytree.tree_map_with_path` | 2.11 to 2.15 | the same |
| `torch.utils._pytree.tree_flatten_with_path` | 2.11 to 2.15 | session, verify: where in them each stands |
| `torch.utils._pytree.keystr` | 2.11 to 2.15 | the same |
| `Tensor._version` | 2.11 to 2.15 | runtime, capture: what was overwritten since is not computed with |
| `Tensor._is_view` | 2.11 to 2.15 | capture: which results are copies |
| `Tensor._backward_hooks` | 2.11 to 2.15 | runtime: a check of a gradient comes before the user's hooks |
| `Tensor._indices` | 2.11 to 2.15 | verify: digests of sparse tensors |
| `Tensor._values` | 2.11 to 2.15 | the same |
| `UntypedStorage._cdata` | 2.11 to 2.15 | everywhere: tells storages apart; `_shim` takes it |
| `Tensor._typed_storage` | 2.11 to 2.15 | eager: ways to bytes that are no operators |
| `UntypedStorage._write_file` | 2.11 to 2.15 | the same |
| `UntypedStorage._share_filename_cpu_` | 2.11 to 2.15 | the same |
| `UntypedStorage._share_fd_cpu_` | 2.11 to 2.15 | the same |
| `torch._VF` | 2.11 to 2.15 | eager: who holds lengths of sequences |
| `torch._VF._pack_padded_sequence` | 2.11 to 2.15 | the same |
| `torch._VF._pad_packed_sequence` | 2.11 to 2.15 | the same |
| `torch.set_rng_state` | 2.11 to 2.15 | eager: replaced, they reach bytes as well |
| `torch.random.set_rng_state` | 2.11 to 2.15 | the same |
| `UntypedStorage.copy_` | 2.11 to 2.15 | the same |
| `torch._dynamo.error_on_graph_break` | 2.11 to 2.15 | session: one graph is tried before several |
| `torch._dynamo.config.allow_rnn` | 2.11 to 2.15 | capture: recurrent layers are captured at all |
| `torch._dynamo.config.fail_on_recompile_limit_hit` | 2.11 to 2.15 | session: a budget must not lapse silently |
| `torch._dynamo.config.recompile_limit` | 2.11 to 2.15 | session: torch's default is too small for models with breaks |
| `torch._dynamo.config.enable_dynamo_decompositions` | 2.11 to 2.15 | capture: operators are not rewritten before it |
| `torch._dynamo.config.optimize_ddp` | 2.11 to 2.15 | session: a graph is not cut at the borders of buckets |
| `torch._dynamo.config.use_numpy_random_stream` | 2.11 to 2.15 | session: numpy draws and computes for itself |
| `torch._dynamo.config.trace_numpy` | 2.11 to 2.15 | the same |
| `torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags` | 2.11 to 2.15 | session: thawed parameters |
| `torch._dynamo.config.skip_nnmodule_hook_guards` | 2.11 to 2.15 | session: a hook that comes later is called |
| `torch._dynamo.config.disable` | 2.11 to 2.15 | session: what keeps all from being captured is named |
| `torch._dynamo.eval_frame._stance` | 2.11 to 2.15 | the same |
| `torch._dynamo.maybe_mark_dynamic` | 2.11 to 2.15 | `max_batch`: one capture for many sizes |
| `Node._dynamo_source` | 2.11 to 2.15 | capture: names of parameters in a graph |
| `torch._dynamo.mark_static_address` | 2.11 to 2.15 | capture: models may mark tensors |
| `torch._dynamo.symbolic_convert.is_forbidden` | 2.11 to 2.15 | the same |
| `torch._dynamo.variables.torch.tracing_state_functions` | 2.11 to 2.15 | capture: models do what they do uncompiled |
| `TorchInGraphFunctionVariable._get_handlers` | 2.11 to 2.15 | capture: calls that Dynamo would rewrite stay |
| `torch._dynamo.trace_rules.get_torch_obj_rule_map` | 2.11 to 2.15 | session: graphs end where data is read |
| `torch._dynamo.trace_rules.is_forbidden` | 2.11 to 2.15 | capture: models may mark tensors |
| `NumpyVariable.call_function` | 2.11 to 2.15 | session: a graph ends where torch would round otherwise |
| `NumpyNdarrayVariable.call_method` | 2.11 to 2.15 | the same |
| `torch._dynamo.variables.builtin.numpy_operator_wrapper` | 2.11 to 2.15 | the same |
| `BaseListVariable` | 2.11 to 2.15 | the same |
| `UserFunctionVariable.__init__` | 2.11 to 2.15 | session: what is looked through; graphs end at a call |
| `SkipFunctionVariable` | 2.11 to 2.15 | the same |
| `WrapperUserFunctionVariable.call_function` | 2.11 to 2.15 | session: what is looked through |
| `VariableBuilder.wrap_module` | 2.11 to 2.15 | the same |
| `_torchdynamo_inline` | 2.11 to 2.15 | session: what others have compiled |
| `_torchdynamo_orig_callable` | 2.11 to 2.15 | the same |
| `_torchdynamo_orig_backend` | 2.11 to 2.15 | the same |
| `_torchdynamo_disable` | 2.11 to 2.15 | the same, of modules |
| `_orig_mod` | 2.11 to 2.15 | the same |
| `OptimizedModule` | 2.11 to 2.15 | the same |
| `VariableBuilder._wrap` | 2.11 to 2.15 | capture: locks end no graph |
| `NullContextVariable` | 2.11 to 2.15 | the same |
| `GuardBuilder.TYPE_MATCH` | 2.11 to 2.15 | the same |
| `LoggingLoggerVariable.call_method` | 2.11 to 2.15 | capture: messages that are said once end no graph |
| `TensorVariable.is_python_constant` | 2.11 to 2.15 | capture: branches that are known |
| `TensorVariable.as_python_constant` | 2.11 to 2.15 | the same |
| `TensorVariable.method_item` | 2.11 to 2.15 | the same |
| `ConstantVariable.create` | 2.11 to 2.15 | the same, and locks, and messages |
| `TensorifyState.force_specializations` | 2.11 to 2.15 | capture: captured again |
| `ShapeEnv.backed_var_to_val` | 2.11 to 2.15 | the same |
| `GraphModule.compile_subgraph_reason` | 2.11 to 2.15 | session: does a graph end at a break |
| `BackendCompilerFailed` | 2.11 to 2.15 | session: why a capture failed |
| `FailOnRecompileLimitHit` | 2.11 to 2.15 | the same |
| `TorchRuntimeError` | 2.11 to 2.15 | the same |
| `Unsupported` | 2.11 to 2.15 | the same |
| `torch._dynamo.exc.exceptions_allowed_to_be_fallback` | 2.11 to 2.15 | session: which graphs run without lowtide |
| `torch._dynamo.utils.counters` | 2.11 to 2.15 | session: was there a graph break |
| `torch._dynamo.pgo.get_code_state` | 2.11 to 2.15 | session: what was compiled is let go of |
| `torch._C._dynamo.eval_frame.reset_code` | 2.11 to 2.15 | the same |
| `torch._dynamo.compiled_autograd.compiled_autograd_enabled` | 2.11 to 2.15 | runtime: refuse what bypasses the plan |
| `torch._C._autograd._get_current_graph_task_keep_graph` | 2.11 to 2.15 | runtime: a retained graph keeps its values |
| `torch.autograd.graph._engine_run_backward` | 2.11 to 2.15 | runtime: what a backward was begun from |
| `Node._input_metadata` | 2.11 to 2.15 | the same: the precision of a cast in it |
| `torch._C._current_graph_task_id` | 2.11 to 2.15 | runtime: whether autograd runs a backward |
| `Variable._execution_engine.queue_callback` | 2.11 to 2.15 | session, verify: what is done when a backward ends |
| `Function.boxed_grads_call` | 2.13 to 2.15 | runtime: a backward's gradients go when a plan drops them |
| `_double_backward` | 2.11 to 2.15 | runtime: a second derivative is refused by name |
| `torch._C._autograd._top_saved_tensors_default_hooks` | 2.11 to 2.15 | session: checkpoints end in time |
| `torch.utils.checkpoint._recomputation_hook` | 2.11 to 2.15 | the same |
| `torch.utils.checkpoint._StopRecomputationError` | 2.11 to 2.15 | the same |
| `torch._C._functorch.peek_interpreter_stack` | 2.11 to 2.15 | session: transforms are refused |
| `torch.autograd.forward_ad._current_level` | 2.11 to 2.15 | the same |
| `torch._C._autograd._profiler_enabled` | 2.11 to 2.15 | device: events of torch's own allocators |
| `torch._C._profiler._EventType` | 2.11 to 2.15 | the same |
| `Module._call_impl` | 2.11 to 2.15 | session: the call of a model is compiled; and replaced |
| `Module._compiled_call_impl` | 2.11 to 2.15 | the same |
| `Module._parameters` | 2.11 to 2.15 | session: tensors without bytes get stand-ins |
| `Module._buffers` | 2.11 to 2.15 | the same |
| `torch.nn.modules.module._global_forward_hooks` | 2.11 to 2.15 | session: hooks of all modules are called |
| `torch.nn.modules.module._global_forward_pre_hooks` | 2.11 to 2.15 | the same |
| `torch.nn.modules.module._global_backward_hooks` | 2.11 to 2.15 | the same |
| `torch.nn.modules.module._global_backward_pre_hooks` | 2.11 to 2.15 | the same |
| `Optimizer._init_group` | 2.11 to 2.15 | ops: an optimizer makes its state before its first step |
| `torch.optim.optimizer._foreach_supported_types` | 2.11 to 2.15 | profile: fake parameters are treated as real ones |
| `torch.optim.optimizer._global_optimizer_pre_hooks` | 2.11 to 2.15 | profile: nobody sees a trial step |
| `torch.optim.optimizer._global_optimizer_post_hooks` | 2.11 to 2.15 | the same |
| `Optimizer._optimizer_step_pre_hooks` | 2.11 to 2.15 | session: a step with hooks is run whole; copies have none |
| `Optimizer._optimizer_step_post_hooks` | 2.11 to 2.15 | the same |
| `_wrapped_by_lr_sched` | 2.11 to 2.15 | session: a scheduler's wrapper of a step is none of the user's |
| `Reducer._rebuild_buckets` | 2.11 to 2.15 | eager: buckets stay |
| `DistributedDataParallel._ddp_init_helper` | 2.11 to 2.15 | the same |
| `torch.distributed.distributed_c10d._get_default_store` | 2.13 to 2.13 | distributed: failures are told |
| `torch._C._distributed_c10d.GradBucket` | 2.13 to 2.13 | distributed: a type |
| `torch._C._distributed_c10d.Store` | 2.13 to 2.13 | the same |
| `DistributedDataParallel._active_ddp_module` | 2.13 to 2.13 | distributed: how a fitted model was wrapped since |
| `DistributedDataParallel._join_config` | 2.13 to 2.13 | distributed: refused inside `Join` |
| `DistributedDataParallel._delay_all_reduce_params` | 2.13 to 2.13 | distributed: refused |
| `DistributedDataParallel._use_python_reducer` | 2.13 to 2.13 | the same |
| `torch._C._get_fp32_precision_getter` | 2.11 to 2.15 | session: plans hold for these settings of kernels |
| `torch._C._get_mkldnn_enabled` | 2.11 to 2.15 | the same |
| `torch._C._get_cudnn_enabled` | 2.11 to 2.15 | the same |
| `torch._C._get_cudnn_benchmark` | 2.11 to 2.15 | the same |
| `torch._C._get_cudnn_deterministic` | 2.11 to 2.15 | the same |
| `torch._C._get_cublas_allow_fp16_reduced_precision_reduction` | 2.11 to 2.15 | the same |
| `torch._C._get_cublas_allow_bf16_reduced_precision_reduction` | 2.11 to 2.15 | the same |
| `torch._C._get_blas_preferred_backend` | 2.11 to 2.15 | the same |
| `torch._C._get_linalg_preferred_backend` | 2.11 to 2.15 | the same |
| `torch._C._set_deterministic_algorithms` | 2.11 to 2.15 | capture: graphs end where set |
| `torch._C._set_mkldnn_enabled` | 2.11 to 2.15 | the same |
| `torch._C._set_mkldnn_deterministic` | 2.11 to 2.15 | the same |
| `torch._C._set_cudnn_enabled` | 2.11 to 2.15 | the same |
| `torch._C._set_cudnn_deterministic` | 2.11 to 2.15 | the same |
| `torch._C._set_cudnn_benchmark` | 2.11 to 2.15 | the same |
| `torch._C._set_fp32_precision_setter` | 2.11 to 2.15 | the same |
| `torch._C._CUDAPluggableAllocator.set_record_stream_fn` | 2.11 to 2.15 | device: lowtide's CUDA allocator |
| `torch._C._CUDAPluggableAllocator.set_reset_fn` | 2.11 to 2.15 | the same |
| `torch._C._CUDAPluggableAllocator.set_base_alloc_fn` | 2.11 to 2.15 | the same |
| `torch._C._CUDAPluggableAllocator.set_begin_allocate_to_pool` | 2.11 to 2.15 | the same |
| `torch._C._cuda_memoryStats` | 2.11 to 2.15 | device: true answers about a GPU's memory |
| `torch._C._cuda_resetPeakMemoryStats` | 2.11 to 2.15 | the same |
| `torch._C._cuda_setMemoryFraction` | 2.11 to 2.15 | the same |
| `torch._C._cuda_resetAccumulatedMemoryStats` | 2.11 to 2.15 | the same |
| `torch._C._accelerator_getDeviceStats` | 2.11 to 2.15 | the same |
| `torch._C._accelerator_resetPeakStats` | 2.11 to 2.15 | the same |
| `torch._C._accelerator_resetAccumulatedStats` | 2.11 to 2.15 | the same |
| `torch.autograd._engine_run_backward` | 2.11 to 2.15 | device: backwards stay on the calling thread |
| `torch.cuda._sleep` | 2.11 to 2.15 | device: work is queued behind it, to time it apart from its issue |
| `torch.cuda.mem_get_info` | 2.11 to 2.15 | the same |
| `torch.cuda._utils._get_device_index` | 2.11 to 2.15 | the same: of which GPU |
| `torch._inductor.compile_fx.compile_fx` | 2.13 to 2.13 | compiled: Inductor compiles both halves of a graph |
| `torch._inductor.compile_fx.partition_fn` | 2.13 to 2.13 | the same: handed to AOTAutograd, like its compilers |
| `CompiledFxGraph.source_code` | 2.13 to 2.13 | compiled: the text of a program |
| `CompiledFxGraph.current_callable` | 2.13 to 2.13 | compiled: its kernels |
| `CompiledFxGraph.inductor_provenance_stack_traces_str` | 2.13 to 2.13 | compiled: lines behind a kernel |
| `torch._inductor.codecache.PyCodeCache.modules` | 2.13 to 2.13 | compiled: where a program was wrapped |
| `torch._inductor.codegen.common.device_codegens` | 2.13 to 2.13 | compiled: one kernel per loop nest |
| `torch._inductor.codegen.common.init_backend_registration` | 2.13 to 2.13 | the same |
| `ready_to_flush` | 2.13 to 2.13 | the same |
| `torch._functorch.config.enable_autograd_cache` | 2.13 to 2.13 | compiled: our compilers are asked in every process |
| `TracingContext.report_output_strides` | 2.13 to 2.13 | compiled: how what is saved lies in memory |
| `fw_metadata.num_mutated_inp_runtime_indices` | 2.13 to 2.13 | compiled: which results are the caller's |
| `torch._C._DisableAutocast` | 2.13 to 2.13 | compiled: programs are compiled as AOTAutograd does |
| `torch._C._dynamo.guards._empty_strided_cpu` | 2.13 to 2.13 | compiled: a kernel's results |
| `torch._C._dynamo.guards._empty_strided_cuda` | 2.13 to 2.13 | the same |
| `torch._C._dynamo.guards._reinterpret_tensor` | 2.13 to 2.13 | compiled: how a kernel sees its arguments |
| `torch._C._cuda_getCurrentRawStream` | 2.13 to 2.13 | compiled: where a GPU's kernels run |
| `torch._inductor.dependencies.MemoryDep` | 2.13 to 2.13 | compiled: which results may lie over what a kernel reads |
| `torch._inductor.virtualized.V` | 2.13 to 2.13 | compiled: comments in a program |
| `wrapper_code.writeline` | 2.13 to 2.13 | the same |

What concerns CUDA was seen in builds for CUDA: one for processors alone lacks it. Up to torch 2.12 a captured backward
holds the gradients that it is given, because `boxed_grads_call` is missing.
"""
