/* bucket */
typedef int fired_bucket_is_not_written_yet;
