python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True \
  actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.model.lora_rank=64 \
  actor_rollout_ref.model.lora_alpha=32 actor_rollout_ref.model.target_modules=all-linear
