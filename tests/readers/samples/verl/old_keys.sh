python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.ppo_micro_batch_size=64 \
  actor_rollout_ref.rollout.load_format=dummy_dtensor critic.model.fsdp_config.param_offload=True \
  actor_rollout_ref.rollout.update_weights_bucket_megabytes=512
