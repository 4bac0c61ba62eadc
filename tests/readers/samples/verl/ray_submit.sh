export CUDA_VISIBLE_DEVICES=0,1,2,3
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False ray job submit --address="http://127.0.0.1:8265" \
  --runtime-env=env.yaml --no-wait \
  -- \
  PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=rloo trainer.n_gpus_per_node=4 data.train_files='["a.parquet","b.parquet"]' \
  actor_rollout_ref.rollout.gpu_memory_utilization=.6 actor_rollout_ref.rollout.max_model_len=null \
  actor_rollout_ref.rollout.enforce_eager=TRUE 2>&1 | tee run.log
