"""Every name of torch that is not part of its documented surface, in one place.

Each entry says what it is needed for. `lowtide.device.releases` tests all of them against the installed torch, so that
a release that moves one is met by a sentence instead of a traceback.

| name | since | needed for |
| --- | --- | --- |
| `torch._dynamo.backends.common.aot_autograd` | 2.0 | capture: joint graph through `partition_fn` |
| `torch._guards.TracingContext` | 2.0 | capture: read the metadata of the forward |
| `fw_metadata.bw_donated_idxs` | 2.5 | capture: slots must not be donated, or `retain_graph` breaks |
| `fw_metadata.mutated_inp_runtime_indices`, `.output_info` | 2.1 | capture: which gradient becomes which tangent |
| `fw_metadata.subclass_tangent_meta` | 2.6 | capture: gradients are not copied unseen |
| `torch._functorch.config.backward_pass_autocast` | 2.9 | capture: the backward is traced as eager runs it |
| `OpOverload.py_kernels`, `OpOverload._dispatch_cache` | 2.0 | capture: composites become the operators of eager |
| `torch._dynamo.config.allow_rnn` | 2.6 | capture: recurrent layers are captured at all |
| `torch._dynamo.error_on_graph_break` | 2.9 | session: one graph is tried before several |
| `torch._dynamo.variables.torch.tracing_state_functions` | 2.2 | capture: models do what they do uncompiled |
| `torch._dynamo.trace_rules.get_torch_obj_rule_map` | 2.1 | session: graphs end where data is read |
| `torch._dynamo.compiled_autograd.compiled_autograd_enabled` | 2.4 | runtime: refuse what would bypass the plan |
| `torch._C._autograd._get_current_graph_task_keep_graph` | 2.5 | runtime: a retained graph keeps what it was given |
| `torch.autograd.Function.boxed_grads_call` | 2.13 | runtime: a backward's gradients go when a plan drops them |
| `torch._C._current_graph_task_id` | 2.1 | runtime: whether autograd runs a backward |
| `torch.optim.Optimizer._init_group` | 2.0 | whole steps: an optimizer makes its state before its first step |
| `torch._dynamo.config.fail_on_recompile_limit_hit` | 2.6 | session: a budget must not lapse silently |
| `torch._inductor.config.fallback_random` | 2.0 | capture: unused random numbers are drawn all the same |
| `torch._dynamo.config.recompile_limit` | 2.6 | session: torch's default is too small for models with breaks |
| `torch._dynamo.config.enable_dynamo_decompositions` | 2.11 | capture: operators are not rewritten before it |
| `FunctionalTensorMode.__torch_dispatch__`, `maybe_to_fresh_input` | 2.11 | capture: slices keep their gaps |
| `torch._dynamo.config.use_numpy_random_stream`, `trace_numpy` | 2.1 | session: numpy draws and computes for itself |
| `NumpyVariable.call_function` and two beside it | 2.1 | session: a graph ends where torch would round otherwise |
| `WrapperUserFunctionVariable.call_function`, `VariableBuilder.wrap_module` | 2.1 | session: what is looked through |
| `torch._dynamo.symbolic_convert.TensorifyState`, `ShapeEnv.backed_var_to_val` | 2.6 | capture: captured again |
| `torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags` | 2.6 | session: a thawed parameter is seen |
| `torch._dynamo.config.skip_nnmodule_hook_guards` | 2.0 | session: a hook that comes later is called |
| `torch.nn.modules.module._global_forward_hooks` and three more | 2.0 | session: so is one for all modules |
| `GraphModule.compile_subgraph_reason` | 2.0 | session: does a graph end at a break |
| `torch._dynamo.exc.exceptions_allowed_to_be_fallback` | 2.1 | session: which graphs run without lowtide |
| `torch._dynamo.utils.counters` | 2.0 | session: was there a graph break |
| `torch._subclasses.fake_tensor` | 2.0 | profile: an optimizer's step that costs no bytes |
| `torch._C._pop_torch_function_stack` and those beside it | 2.0 | session: capture inside `torch.device("meta")` |
| `torch.optim.optimizer._foreach_supported_types` | 2.1 | profile: fake parameters are treated as real ones |
| `torch._C._CUDAPluggableAllocator.set_*_fn` | 2.1 | device: streams, refusals of lowtide's CUDA allocator |
| `torch._C._cuda_memoryStats` and those beside it | 2.0 | device: true answers about a GPU's memory |
| `torch.optim.optimizer._global_optimizer_pre_hooks` | 2.1 | profile: nobody's hooks see a step that is a trial |
| `Reducer._rebuild_buckets`, `DistributedDataParallel._ddp_init_helper` | 2.0 | dynamic: buckets stay |
| `torch._C._autograd._top_saved_tensors_default_hooks` | 2.5 | session: a checkpoint's second forward ends in time |
| `torch.utils.checkpoint._recomputation_hook`, `._StopRecomputationError` | 2.1 | the same |
| `torch.utils._python_dispatch.is_traceable_wrapper_subclass` | 2.1 | session: tensors made of others are refused |
"""
