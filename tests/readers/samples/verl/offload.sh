python -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=fsdp2 critic.strategy=fsdp2 \
  actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.actor.fsdp_config.optimizer_offload=true \
  actor_rollout_ref.actor.fsdp_config.offload_policy=False actor_rollout_ref.ref.fsdp_config.param_offload=False
