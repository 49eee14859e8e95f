/* config_file */
typedef int fired_config_file_is_not_written_yet;
