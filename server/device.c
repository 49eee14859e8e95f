/* device */
typedef int fired_device_is_not_written_yet;
