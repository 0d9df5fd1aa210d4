"""An asset that is computed by Retrofill: a range of its daily partitions is one backfill, not a run a day."""

from datetime import timedelta

from dagster import (
    AssetExecutionContext,
    BackfillPolicy,
    DailyPartitionsDefinition,
    Definitions,
    EnvVar,
    MaterializeResult,
    asset,
)
from retrofill_resource import RetrofillResource


@asset(
    partitions_def=DailyPartitionsDefinition(start_date="2013-01-01", timezone="America/New_York"),
    backfill_policy=BackfillPolicy.single_run(),
)
def delays(context: AssetExecutionContext, retrofill: RetrofillResource) -> MaterializeResult:
    days = context.partition_time_window
    done = retrofill.backfill(
        context.run_id, "flights", days.start.date(), days.end.date() - timedelta(days=1), reprocess="completed"
    )
    return MaterializeResult(metadata={"backfill": done.id, "runs": done.runs})


defs = Definitions(
    assets=[delays],
    resources={"retrofill": RetrofillResource(url=EnvVar("BACKFILLS_URL"), token=EnvVar("BACKFILLS_TOKEN"))},
)
