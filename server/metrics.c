/* metrics */
typedef int fired_metrics_is_not_written_yet;
