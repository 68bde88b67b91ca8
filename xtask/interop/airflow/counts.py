"""Three workflows of one task each, a pod that counts; everything else is as the defaults are."""
import os
from datetime import datetime, timezone

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG

for name in ("machine", "scheduler", "group"):
    with DAG(name, schedule=None, catchup=False, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)) as dag:
        KubernetesPodOperator(
            task_id="far",
            name=f"far-{name}",
            namespace="default",
            image=os.environ["COUNTER_IMAGE"],
            cmds=["/bin/sh", "-c"],
            arguments=[os.environ["COUNTER"]],
            config_file=os.environ["COUNTER_KUBECONFIG"],
            kubernetes_conn_id=None,
            in_cluster=False,
            on_finish_action="keep_pod",
        )
    globals()[name] = dag
