set -x
NGPU=${NGPU:-8}

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae \
    trainer.n_gpus_per_node=$NGPU trainer.nnodes=2 \
    critic.ppo_micro_batch_size_per_gpu=8 \
    critic.fsdp.optimizer_offload=True $@
